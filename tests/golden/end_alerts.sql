UPDATE outbox_alerts
SET over_at=now(),
  untold=CASE
    WHEN (outbox_alerts.kind = %(kind_1)s::VARCHAR OR outbox_alerts.kind = %(kind_2)s::VARCHAR OR outbox_alerts.kind = %(kind_3)s::VARCHAR) THEN %(param_1)s::INTEGER
    ELSE outbox_alerts.untold END,
  told=CASE
    WHEN (outbox_alerts.kind = %(kind_1)s::VARCHAR OR outbox_alerts.kind = %(kind_2)s::VARCHAR OR outbox_alerts.kind = %(kind_3)s::VARCHAR) THEN outbox_alerts.untold
    ELSE outbox_alerts.told END,
  post_at=CASE
    WHEN ((outbox_alerts.kind = %(kind_1)s::VARCHAR OR outbox_alerts.kind = %(kind_2)s::VARCHAR OR outbox_alerts.kind = %(kind_3)s::VARCHAR) AND %(posting)s) THEN now()
    ELSE outbox_alerts.post_at END,
  posts=CASE
    WHEN (outbox_alerts.kind = %(kind_1)s::VARCHAR OR outbox_alerts.kind = %(kind_2)s::VARCHAR OR outbox_alerts.kind = %(kind_3)s::VARCHAR) THEN %(param_2)s::INTEGER
    ELSE outbox_alerts.posts END
WHERE outbox_alerts.over_at IS NULL
  AND outbox_alerts.last_at < now() - %(quiet)s * interval '1 second'
  AND NOT CASE
    WHEN (outbox_alerts.kind = %(kind_4)s::VARCHAR) THEN EXISTS (
  SELECT outbox_destinations.name
  FROM outbox_destinations
  WHERE outbox_destinations.name = outbox_alerts.destination
    AND outbox_destinations.opened_at IS NOT NULL
)
    WHEN (outbox_alerts.kind = %(kind_5)s::VARCHAR OR outbox_alerts.kind = %(kind_6)s::VARCHAR) THEN EXISTS (
  SELECT outbox_messages.id
  FROM outbox_messages
  WHERE outbox_messages.destination = outbox_alerts.destination
    AND outbox_messages.status = 'dead'
    AND outbox_messages.dead_at > outbox_alerts.first_at - interval '1 minute'
    AND CASE
      WHEN (outbox_alerts.kind = %(kind_7)s::VARCHAR) THEN outbox_messages.last_error_code IS NOT DISTINCT
  FROM (outbox_alerts.facts ->> %(facts_1)s::TEXT)
      ELSE outbox_messages.key IS NOT NULL END
)
    ELSE false END
RETURNING outbox_alerts.name, outbox_alerts.kind, outbox_alerts.destination, outbox_alerts.first_at, outbox_alerts.last_at, outbox_alerts.told_at, outbox_alerts.over_at, outbox_alerts.count, outbox_alerts.told, outbox_alerts.facts, outbox_alerts.kind = %(kind_1)s::VARCHAR OR outbox_alerts.kind = %(kind_2)s::VARCHAR OR outbox_alerts.kind = %(kind_3)s::VARCHAR AS now;
-- facts_1 = 'code'
-- kind_1 = 'breaker'
-- kind_2 = 'stale'
-- kind_3 = 'late'
-- kind_4 = 'breaker'
-- kind_5 = 'dead_letter'
-- kind_6 = 'key_blocked'
-- kind_7 = 'dead_letter'
-- param_1 = 0
-- param_2 = 0
