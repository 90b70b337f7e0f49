"""The archive, day by day. `partitions` makes the next days' partitions; `export` writes days as `files` to a
`storage`; `statements` is the SQL of both. `outbox_tasks.operating.retention` decides which days are dropped, and
when."""
