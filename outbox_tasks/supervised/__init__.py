"""The worker's side of supervised tasks: an application's own workers say on the row when a task begins and ends.

`supervise` adds this to an app, mostly by Celery's signals. `supervisor` begins and ends runs in the process that runs
the task; `watch` works in the worker's main process. `lost_tasks` is the relay's side: it looks before each claim.
"""
