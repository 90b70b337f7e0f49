"""What people do with messages: `lookup` finds them, by the statements of `search`; `redrive` sends them after all, or
gives up on them, or changes them, by the statements here, and keeps who did it and why."""
