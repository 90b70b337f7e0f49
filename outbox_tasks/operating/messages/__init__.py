"""What people do with messages: `find` finds them; `acts` redrives, discards, edits and purges them, and records who
did it and why."""
