WITH here AS (INSERT INTO outbox_publishers (holder, seen_at) SELECT unnest(%(holders)s::TEXT[]) AS unnest_1, clock_timestamp() AS clock_timestamp_1 WHERE (SELECT set_config(%(set_config_2)s::VARCHAR, %(set_config_3)s::VARCHAR, %(set_config_4)s) AS set_config_1) = %(param_1)s::VARCHAR ON CONFLICT (holder) DO UPDATE SET seen_at = excluded.seen_at)
SELECT count(*) AS count_1
FROM outbox_publishers
WHERE outbox_publishers.seen_at > now() - %(param_2)s * interval '1 second'
  AND outbox_publishers.holder != all(%(holders)s::TEXT[]);
-- param_1 = 'off'
-- param_2 = 30.0
-- set_config_2 = 'synchronous_commit'
-- set_config_3 = 'off'
-- set_config_4 = True
