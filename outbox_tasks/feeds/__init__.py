"""Feeds: `writer` writes rows into an application's own database. `source` and one module a dialect read them there.
`bridge` copies them into the relay's tables, in the task of `task`."""
