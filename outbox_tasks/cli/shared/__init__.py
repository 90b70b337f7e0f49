"""What the commands share: the group, options, output, and what is done to chosen messages."""
