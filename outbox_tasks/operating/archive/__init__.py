"""The archive, day by day: `partitions` has some ahead, `export` writes days as `files` to a `storage`, `statements` is
the SQL of both. `outbox_tasks.operating.retention` says which days go, and when."""
