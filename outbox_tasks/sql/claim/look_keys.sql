-- Looks for due messages with keys: a window of the ready rows of each destination, in the order of their numbers, and the
-- first held rows of their keys, and of keys that may be free. It locks these rows, but not what is held behind a lease: who
-- settles that would wait for the claim. What another has locked is not `mine`.
--
-- share: JSON rows of destination, size (of the window), longest (run), blocks (a dead letter), and start. high; first: what has
-- a lower number is not looked at; since: no lease ends before; marks: JSON rows of class and floor. After the rows: what makes keys busy. leased; run: the number of
-- one; stop: of the first message that waits or is a dead letter; floor: an open writer may write what is higher.
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
      WHERE h.destination = share.destination AND h.free AND h.seq >= :first::bigint ORDER BY h.seq LIMIT share.size) AS h
  ) AS one GROUP BY destination, key
), held AS MATERIALIZED (  -- cut: there may be more behind
  SELECT h.*, count(*) OVER (PARTITION BY h.destination, h.key) = most.rows AS cut
  FROM key k JOIN share ON share.destination = k.destination
  CROSS JOIN LATERAL (SELECT least(share.longest, 1 + share.size / (SELECT count(*) FROM key)) AS rows) AS most
  CROSS JOIN LATERAL (
    SELECT h.ctid AS at, h.* FROM :schema.outbox_held h WHERE h.destination = k.destination AND h.key = k.key
      AND h.seq >= :first ORDER BY h.seq LIMIT most.rows) AS h
), my_ready AS MATERIALIZED (
  SELECT r.ctid AS at FROM :schema.outbox_ready r WHERE r.ctid = ANY (ARRAY(SELECT at FROM ready)) FOR UPDATE SKIP LOCKED
), leased AS MATERIALIZED (
  SELECT l.destination, unnest(l.keys) AS key
  FROM share JOIN :schema.outbox_leases l ON l.destination = share.destination
  WHERE l.keys IS NOT NULL AND l.locked_until >= :since::timestamptz AND l.seqs[1] >= :first
), my_held AS MATERIALIZED (
  SELECT h.ctid AS at FROM :schema.outbox_held h WHERE h.ctid = ANY (ARRAY(
    SELECT at FROM held WHERE (destination, key) NOT IN (SELECT destination, key FROM leased))) FOR UPDATE SKIP LOCKED
), mark AS MATERIALIZED (
  SELECT * FROM json_to_recordset(:marks::json) AS m(class bigint, floor bigint)
), fact AS MATERIALIZED (  -- in most outboxes few of these tables have rows with keys
  SELECT k.destination, k.key, (k.destination, k.key) IN (SELECT destination, key FROM leased) AS leased,
         CASE WHEN EXISTS (SELECT FROM :schema.outbox_runs WHERE key IS NOT NULL) THEN (
           SELECT min(r.seq) FROM :schema.outbox_runs r WHERE r.destination = k.destination AND r.key = k.key AND r.seq >= :first) END AS run,
         least(CASE WHEN EXISTS (SELECT FROM :schema.outbox_waiting WHERE key IS NOT NULL) THEN (
           SELECT min(w.seq) FROM :schema.outbox_waiting w WHERE w.destination = k.destination AND w.key = k.key AND w.seq >= :first) END,
               CASE WHEN share.blocks AND EXISTS (SELECT FROM :schema.outbox_dead WHERE key IS NOT NULL) THEN (
           SELECT min(d.seq) FROM :schema.outbox_dead d WHERE d.destination = k.destination AND d.key = k.key AND d.seq >= :first) END) AS stop,
         CASE WHEN EXISTS (SELECT FROM mark) THEN (
           SELECT min(floor) FROM mark
           WHERE class = :schema.outbox_all_keys() OR class = :schema.outbox_key_class(k.destination, k.key)) END AS floor
  FROM key k JOIN share ON share.destination = k.destination
)
SELECT destination, key, seq, at::text, false AS is_held, false AS free, false AS cut, at IN (SELECT at FROM my_ready) AS mine,
       date_part('epoch', now()) - date_part('epoch', since) AS age, size, attempts, priority, alone, latest,
       NULL::boolean AS leased, NULL::bigint AS run, NULL::bigint AS stop, NULL::bigint AS floor FROM ready
UNION ALL
SELECT destination, key, seq, at::text, true, free, cut, at IN (SELECT at FROM my_held), date_part('epoch', now()) - date_part('epoch', since), size,
       attempts, priority, alone, latest, NULL, NULL, NULL, NULL FROM held
UNION ALL
SELECT destination, key, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, leased, run, stop, floor FROM fact
WHERE leased OR coalesce(run, stop, floor) IS NOT NULL
