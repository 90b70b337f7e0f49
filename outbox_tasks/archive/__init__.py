"""The archive, day by day: `export` writes days as `files` to a `storage`, and `replay` sends messages of it again.
`outbox_tasks.operating.retention` decides which days are dropped, and when."""
