INSERT INTO outbox_alerts (name, kind, destination, count, facts, first_at, last_at, told_at, told, post_at)
SELECT happened.alert, happened.kind, happened.destination, happened.count, happened.facts, now() AS now_1, now() AS now_2, now() AS now_3, happened.count AS count__1, CASE
    WHEN %(posting)s THEN now() END AS anon_1
FROM json_to_recordset(CAST(%(happened)s::VARCHAR AS JSON)) AS happened(alert TEXT, kind TEXT, destination TEXT, count BIGINT, facts JSONB) ON CONFLICT (name) DO
UPDATE
SET first_at = CASE
    WHEN (outbox_alerts.over_at IS NOT NULL) THEN excluded.first_at
    ELSE outbox_alerts.first_at END,
  last_at = excluded.last_at,
  told_at = CASE
    WHEN (outbox_alerts.over_at IS NOT NULL OR outbox_alerts.told_at <= now() - %(again)s * interval '1 second') THEN excluded.told_at
    ELSE outbox_alerts.told_at END,
  over_at = NULL,
  count = CASE
    WHEN (outbox_alerts.over_at IS NOT NULL) THEN excluded.count
    ELSE outbox_alerts.count + excluded.count END,
  untold = CASE
    WHEN (outbox_alerts.over_at IS NOT NULL OR outbox_alerts.told_at <= now() - %(again)s * interval '1 second') THEN %(param_1)s::INTEGER
    ELSE outbox_alerts.untold + excluded.count END,
  told = CASE
    WHEN (outbox_alerts.over_at IS NOT NULL OR outbox_alerts.told_at <= now() - %(again)s * interval '1 second') THEN outbox_alerts.untold + excluded.count
    ELSE outbox_alerts.told END,
  post_at = CASE
    WHEN (outbox_alerts.over_at IS NOT NULL OR outbox_alerts.told_at <= now() - %(again)s * interval '1 second') THEN excluded.post_at
    ELSE outbox_alerts.post_at END,
  posts = CASE
    WHEN (outbox_alerts.over_at IS NOT NULL OR outbox_alerts.told_at <= now() - %(again)s * interval '1 second') THEN %(param_2)s::INTEGER
    ELSE outbox_alerts.posts END,
  facts = excluded.facts
RETURNING outbox_alerts.name, outbox_alerts.kind, outbox_alerts.destination, outbox_alerts.first_at, outbox_alerts.last_at, outbox_alerts.told_at, outbox_alerts.over_at, outbox_alerts.count, outbox_alerts.told, outbox_alerts.facts, outbox_alerts.told_at = outbox_alerts.last_at AS now;
-- param_1 = 0
-- param_2 = 0
