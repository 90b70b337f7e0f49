WITH kept AS (
  SELECT CASE
      WHEN (anon_1.id ~ '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$') THEN CAST(anon_1.id AS UUID) END AS id, outbox_audit.at AS at
  FROM outbox_audit
  JOIN jsonb_array_elements_text(CASE WHEN (jsonb_typeof(outbox_audit.facts -> 'changed') = 'array') THEN outbox_audit.facts -> 'changed' ELSE '[]'::jsonb END) AS anon_1(id) ON true
  WHERE outbox_audit.seq = %(entry)s::BIGINT
)
SELECT found.state, found.code, count(*) AS count, CAST(min(CAST(found.id AS TEXT)) AS UUID) AS id
FROM (
  SELECT CASE
      WHEN (outbox_messages.status = 'dead') THEN 'dead'
      WHEN (outbox_messages.handed_at IS NOT NULL AND outbox_messages.locked_until > now() AND outbox_messages.begun) THEN 'running'
      WHEN (outbox_messages.handed_at IS NOT NULL AND outbox_messages.locked_until > now()) THEN 'handed over'
      WHEN (outbox_messages.lease IS NOT NULL AND outbox_messages.locked_until > now() AND (outbox_messages.begun OR outbox_messages.attempts = %(attempts_1)s::INTEGER)) THEN 'leased'
      WHEN (outbox_messages.attempts > %(attempts_2)s::INTEGER) THEN 'retrying'
      WHEN (outbox_messages.locked_until > now()) THEN 'scheduled'
      ELSE 'pending' END AS state, CASE
      WHEN (outbox_messages.status = 'dead' OR outbox_messages.attempts > %(attempts_3)s::INTEGER) THEN outbox_messages.last_error_code END AS code, outbox_messages.id AS id
  FROM kept
  JOIN outbox_messages ON outbox_messages.id = ANY (ARRAY[kept.id])
  UNION ALL
  SELECT outbox_archive.state AS state, CAST(NULL AS TEXT) AS anon_2, outbox_archive.id AS id
  FROM kept
  JOIN outbox_archive ON outbox_archive.id = ANY (ARRAY[kept.id])
  WHERE outbox_archive.finished_at >= kept.at
) AS found GROUP BY found.state, found.code
UNION ALL
SELECT CAST(NULL AS TEXT) AS anon_2, CAST(NULL AS TEXT) AS anon__1, count(*) AS count_1, CAST(NULL AS UUID) AS anon__2
FROM kept;
-- attempts_1 = 0
-- attempts_2 = 0
-- attempts_3 = 0
