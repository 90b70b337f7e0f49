DELETE FROM outbox_publishers
WHERE outbox_publishers.holder = %(holder)s::VARCHAR;
