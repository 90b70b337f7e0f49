"""Sends people alerts. `notifier` hears of what happens. By `table` and `statements` the cluster sends each alert once.
`webhook` has the text of an alert and posts it."""
