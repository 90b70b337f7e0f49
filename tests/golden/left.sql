DELETE FROM outbox_publishers
WHERE outbox_publishers.holder = any(%(holders)s::TEXT[]);
