"""The source side of a feed: the table `outbox_feed` in an application's own database, as the relay sees it."""
