"""A guard against calls of tasks that go past the outbox: while the application runs, and in its source."""
