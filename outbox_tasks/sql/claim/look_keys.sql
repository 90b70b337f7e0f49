-- Looks for due messages with keys: a window of the ready rows of each destination, in the order of their numbers, and the
-- first held rows of their keys, and of keys that may be free. It locks these rows; what another has locked is not `mine`.
--
-- share: JSON rows of destination, size (of the window), longest (run), blocks (a dead letter), and start. high; since: no
-- lease ends before; marks: JSON rows of class and floor. After the rows: what makes keys busy. lease: its token; run: its
-- number; stop: of the first message that waits or is a dead letter; floor: an open writer may write what is higher.
WITH share AS MATERIALIZED (
  SELECT * FROM json_to_recordset(:share::json) AS s(destination text, size integer, longest integer, blocks boolean, start bigint)
), ready AS MATERIALIZED (
  SELECT r.* FROM share CROSS JOIN LATERAL (
    SELECT r.ctid AS at, r.* FROM :schema.outbox_ready r
    WHERE r.destination = share.destination AND r.key IS NOT NULL AND r.seq >= share.start AND r.seq <= :high::bigint
    ORDER BY r.seq LIMIT share.size) AS r
), key AS MATERIALIZED (
  SELECT destination, key FROM (
    SELECT destination, key FROM ready
    UNION ALL
    SELECT h.destination, h.key FROM share CROSS JOIN LATERAL (
      SELECT h.destination, h.key FROM :schema.outbox_held h
      WHERE h.destination = share.destination AND h.free ORDER BY h.seq LIMIT share.size) AS h
  ) AS one GROUP BY destination, key
), held AS MATERIALIZED (
  SELECT h.* FROM key k JOIN share ON share.destination = k.destination CROSS JOIN LATERAL (
    SELECT h.ctid AS at, h.* FROM :schema.outbox_held h WHERE h.destination = k.destination AND h.key = k.key
    ORDER BY h.seq LIMIT least(share.longest, 1 + share.size / (SELECT count(*) FROM key))) AS h
), my_ready AS MATERIALIZED (
  SELECT r.ctid AS at FROM :schema.outbox_ready r WHERE r.ctid = ANY (ARRAY(SELECT at FROM ready)) FOR UPDATE SKIP LOCKED
), my_held AS MATERIALIZED (
  SELECT h.ctid AS at FROM :schema.outbox_held h WHERE h.ctid = ANY (ARRAY(SELECT at FROM held)) FOR UPDATE SKIP LOCKED
), leased AS (
  SELECT l.destination, k AS key, l.token::text AS lease
  FROM share JOIN :schema.outbox_leases l ON l.destination = share.destination AND l.keys IS NOT NULL
  CROSS JOIN LATERAL unnest(l.keys) AS k
  WHERE l.locked_until >= :since::timestamptz AND (l.destination, k) IN (SELECT destination, key FROM key)
), mark AS MATERIALIZED (
  SELECT * FROM json_to_recordset(:marks::json) AS m(class bigint, floor bigint)
), stopped AS MATERIALIZED (
  SELECT k.destination, k.key,
         (SELECT min(r.seq) FROM :schema.outbox_runs r WHERE r.destination = k.destination AND r.key = k.key) AS run,
         least((SELECT min(w.seq) FROM :schema.outbox_waiting w WHERE w.destination = k.destination AND w.key = k.key),
               (SELECT min(d.seq) FROM :schema.outbox_dead d
                WHERE share.blocks AND d.destination = k.destination AND d.key = k.key)) AS stop,
         CASE WHEN EXISTS (SELECT FROM mark) THEN (
           SELECT min(floor) FROM mark
           WHERE class = :schema.outbox_all_keys() OR class = :schema.outbox_key_class(k.destination, k.key)) END AS floor
  FROM key k JOIN share ON share.destination = k.destination
)
SELECT destination, key, seq, at::text, false AS is_held, at IN (SELECT at FROM my_ready) AS mine,
       date_part('epoch', now() - since) AS age, size, attempts, priority, alone, latest,
       NULL AS lease, NULL::bigint AS run, NULL::bigint AS stop, NULL::bigint AS floor FROM ready
UNION ALL
SELECT destination, key, seq, at::text, true, at IN (SELECT at FROM my_held), date_part('epoch', now() - since), size, attempts,
       priority, alone, latest, NULL, NULL, NULL, NULL FROM held
UNION ALL
SELECT destination, key, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, lease, NULL, NULL, NULL FROM leased
UNION ALL
SELECT destination, key, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, run, stop, floor FROM stopped
WHERE coalesce(run, stop, floor) IS NOT NULL
