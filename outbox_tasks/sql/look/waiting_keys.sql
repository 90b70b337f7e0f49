-- The keys whose first message waits for its time or another try, and that have more messages behind it, those first whose wait
-- ends first: destination, key, id (of the first message), until, last_error_code (null: it is scheduled), last_error, and
-- waiting: how many are behind it, counted up to 10,000. And a row without a key for each of the `shut` destinations that has
-- messages with keys.
-- What no take has looked at yet counts if it is among the first of ready (fresh).
-- destinations; shut: names; size: how many keys of each destination are looked at. Index: outbox_keys (destination, due).
SELECT k.destination, k.key, m.id::text, h.since AS until, t.code AS last_error_code, t.error AS last_error, b.waiting
FROM unnest(:destinations::text[]) AS d
CROSS JOIN LATERAL (
  SELECT coalesce(jsonb_object_agg(r.key, r.count), '{}') AS of FROM (
    SELECT r.key, count(*) AS count
    FROM (SELECT key FROM :schema.outbox_ready WHERE destination = d AND key IS NOT NULL ORDER BY seq LIMIT 1000) AS r GROUP BY r.key
  ) AS r
) AS fresh
CROSS JOIN LATERAL (
  SELECT k.destination, k.key, k.first FROM :schema.outbox_keys k
  WHERE k.destination = d AND k.token IS NULL AND k.due > now() AND k.due < 'infinity' ORDER BY k.due LIMIT :size::integer
) AS k
CROSS JOIN LATERAL (
  SELECT h.seq, h.since FROM :schema.outbox_held h
  WHERE h.destination = k.destination AND h.key = k.key AND h.seq >= k.first ORDER BY h.seq LIMIT 1
) AS h
CROSS JOIN LATERAL (
  SELECT coalesce((fresh.of ->> k.key)::bigint, 0) + count(*) AS waiting FROM (
    SELECT FROM :schema.outbox_held b
    WHERE b.destination = k.destination AND b.key = k.key AND b.seq > h.seq LIMIT 10000) AS b
) AS b
CROSS JOIN LATERAL (SELECT m.id FROM :schema.outbox_messages m WHERE m.seq = h.seq LIMIT 1) AS m
LEFT JOIN LATERAL (SELECT t.code, t.error FROM :schema.outbox_trouble t WHERE t.seq = h.seq LIMIT 1) AS t ON true
WHERE b.waiting > 0 AND h.since > now()
UNION ALL
SELECT d, NULL, NULL, NULL, NULL, NULL, NULL FROM unnest(:shut::text[]) AS d
WHERE EXISTS (SELECT FROM :schema.outbox_held h WHERE h.destination = d)
   OR EXISTS (SELECT FROM :schema.outbox_ready r WHERE r.destination = d AND r.key IS NOT NULL)
ORDER BY until
