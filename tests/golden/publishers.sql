SELECT count(*) AS count_1
FROM outbox_publishers
WHERE outbox_publishers.seen_at > now() - %(param_1)s * interval '1 second';
-- param_1 = 30.0
