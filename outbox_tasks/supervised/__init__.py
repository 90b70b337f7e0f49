"""Supervised tasks: an application's own workers say on the row when a task begins and ends.

In the process of the task: `hooks`, `supervisor`, `run`, `store`, `complete`. In the worker's main process: `watch`. In
the relay: `lost_tasks`, `problems`. At the call: `by_default`. `supervise` adds all of this to an app.
"""
