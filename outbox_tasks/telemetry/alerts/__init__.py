"""Sends people alerts. `notifier` hears of what happens. By its `table` the cluster sends each alert once. `webhook`
has the text of an alert and posts it."""
