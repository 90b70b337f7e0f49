UPDATE outbox_alerts
SET post_at=CASE
    WHEN (outbox_alerts.posts < %(posts_1)s::INTEGER) THEN now() + least(%(param_1)s, %(wait)s * power(%(power_1)s::INTEGER, least(outbox_alerts.posts - %(posts_2)s::INTEGER, %(least_1)s::INTEGER))) * interval '1 second' END
WHERE outbox_alerts.name = ANY (%(names)s::TEXT[])
  AND outbox_alerts.post_at = %(lease)s::TIMESTAMP WITH TIME ZONE
RETURNING outbox_alerts.name, outbox_alerts.post_at;
-- least_1 = 20
-- param_1 = 300.0
-- posts_1 = 100
-- posts_2 = 1
-- power_1 = 2
