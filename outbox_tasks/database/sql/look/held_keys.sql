-- The keys that are held up and have messages waiting: first those behind a dead letter, the longest first; then those whose first
-- message waits for its time or another try, by its end. destination, key, id (of the first message), since (it is dead), until
-- (it waits), last_error_code (null: it is scheduled), last_error, waiting (how many are behind it, counted up to 10,000, and
-- of those that no take has looked at yet, among the first of ready). And a row without a key for each of the `shut` destinations
-- that has messages with keys.
-- blocking: JSON rows of destination, and blocks: whether dead letters hold up its keys; most: of each destination, how many keys
-- with dead letters are looked at; size: how many are shown of each kind; shut: names. Index: outbox_keys (destination, due).
WITH asked AS MATERIALIZED (
  SELECT * FROM json_to_recordset(:blocking::json) AS a(destination text, blocks boolean)
), held AS (
  (SELECT d.destination, d.key, d.seq, d.dead_at, NULL::timestamptz AS until, d.fresh
   FROM asked a
   CROSS JOIN LATERAL (
     \ir parts/held_up.sql
   ) AS d
   ORDER BY d.dead_at LIMIT :size::integer)
  UNION ALL
  SELECT a.destination, k.key, h.seq, NULL, h.since, coalesce((fresh.of ->> k.key)::bigint, 0)
  FROM asked a
  CROSS JOIN LATERAL (
    SELECT coalesce(jsonb_object_agg(r.key, r.count), '{}') AS of FROM (
      SELECT r.key, count(*) AS count
      FROM (SELECT key FROM :schema.outbox_ready WHERE destination = a.destination AND key IS NOT NULL ORDER BY seq LIMIT 1000) AS r
      GROUP BY r.key) AS r
  ) AS fresh
  CROSS JOIN LATERAL (
    SELECT k.key, k.first FROM :schema.outbox_keys k
    WHERE k.destination = a.destination AND k.token IS NULL AND k.due > now() AND k.due < 'infinity' ORDER BY k.due LIMIT :size
  ) AS k
  CROSS JOIN LATERAL (
    SELECT h.seq, h.since FROM :schema.outbox_held h
    WHERE h.destination = a.destination AND h.key = k.key AND h.seq >= k.first ORDER BY h.seq LIMIT 1
  ) AS h
  WHERE h.since > now()
)
SELECT held.destination, held.key, m.id::text, held.dead_at AS since, held.until, t.code AS last_error_code, t.error AS last_error,
       held.fresh + b.count AS waiting
FROM held
CROSS JOIN LATERAL (
  SELECT count(*) AS count FROM (
    SELECT FROM :schema.outbox_held b
    WHERE b.destination = held.destination AND b.key = held.key AND b.seq > held.seq LIMIT 10000) AS b
) AS b
CROSS JOIN LATERAL (SELECT m.id FROM :schema.outbox_messages m WHERE m.seq = held.seq LIMIT 1) AS m
LEFT JOIN LATERAL (SELECT t.code, t.error FROM :schema.outbox_trouble t WHERE t.seq = held.seq LIMIT 1) AS t ON true
WHERE held.fresh + b.count > 0
UNION ALL
SELECT d, NULL, NULL, NULL, NULL, NULL, NULL, NULL FROM unnest(:shut::text[]) AS d
WHERE EXISTS (SELECT FROM :schema.outbox_held h WHERE h.destination = d)
   OR EXISTS (SELECT FROM :schema.outbox_ready r WHERE r.destination = d AND r.key IS NOT NULL)
ORDER BY since, until
