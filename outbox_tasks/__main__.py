"""`python -m outbox_tasks` is `outbox-tasks`."""

from outbox_tasks.cli import main

main()
