UPDATE outbox_alerts
SET post_at=(now() + %(hold)s * interval '1 second'),
  posts=(outbox_alerts.posts + %(posts_1)s::INTEGER)
WHERE outbox_alerts.name = ANY (array((
  SELECT outbox_alerts.name
  FROM outbox_alerts
  WHERE outbox_alerts.post_at <= now()
  ORDER BY outbox_alerts.post_at
  LIMIT %(param_1)s::INTEGER
  FOR UPDATE SKIP LOCKED
)))
RETURNING outbox_alerts.name, outbox_alerts.kind, outbox_alerts.destination, outbox_alerts.first_at, outbox_alerts.last_at, outbox_alerts.told_at, outbox_alerts.over_at, outbox_alerts.count, outbox_alerts.told, outbox_alerts.facts, outbox_alerts.post_at, outbox_alerts.posts;
-- param_1 = 20
-- posts_1 = 1
