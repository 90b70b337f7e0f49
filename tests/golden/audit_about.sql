WITH found AS (
  SELECT outbox_audit.seq AS seq
  FROM outbox_audit
  WHERE outbox_audit.target = %(target)s::VARCHAR
  UNION
  SELECT anon_1.seq AS seq
  FROM unnest(%(named)s::BIGINT[]) AS anon_1(seq)
)
SELECT outbox_audit.seq, outbox_audit.at, outbox_audit.who, outbox_audit.why, outbox_audit.action, outbox_audit.target, outbox_audit.count, ((CASE WHEN (jsonb_typeof(outbox_audit.facts) = 'object') THEN outbox_audit.facts ELSE '{}'::jsonb END - CAST(%(param_1)s::VARCHAR AS TEXT)) - CAST(%(param_2)s::VARCHAR AS TEXT)) - CAST(%(param_3)s::VARCHAR AS TEXT) AS facts
FROM outbox_audit
WHERE outbox_audit.seq = ANY (array((
  SELECT found.seq
  FROM found
)))
ORDER BY outbox_audit.seq;
-- param_1 = 'former'
-- param_2 = 'changed'
-- param_3 = 'form'
