-- Takes due messages with keys: of each free key the first ones, as one run. With this they are gone from ready and
-- held; `lease.sql`, in the same transaction, leases them. `alone.sql` and `marks.sql` come before, in this order.
--
-- It looks at a window of ready rows, in the order of their numbers, and at held rows of keys that may be free. A key is
-- busy while a message of it is leased or runs, or an earlier one waits or is a dead letter that blocks, or while a
-- transaction that wrote it is open. What is not taken of the window moves to held, so no claim reads it again there.
-- What somebody else has locked stays in ready, and `next` says where the next claim begins.
--
-- A held row is marked `free` if its key may be free. None is forgotten: the first row of a key to be held is marked;
-- what a claim leaves of a key is marked by the settle of the run that it took; what waits is marked as it wakes; who
-- removes a dead letter marks what is behind it.
--
-- share: JSON rows of destination, size, longest (of a run), bytes (of a run), blocks, start, ceiling, oldest and
-- largest, as limits of what can be sent. high; marks: JSON rows of class and floor; since: no lease ends before.
WITH share AS MATERIALIZED (
  SELECT * FROM json_to_recordset(:share::json) AS r(destination text, size integer, longest integer, bytes integer,
    blocks boolean, start bigint, ceiling integer, oldest float, largest integer)
), looked AS MATERIALIZED (
  SELECT share.destination, r.at, r.seq, count(*) OVER (PARTITION BY share.destination) >= share.size AS full
  FROM share CROSS JOIN LATERAL (
    SELECT r.ctid AS at, r.seq FROM :schema.outbox_ready r
    WHERE r.destination = share.destination AND r.key IS NOT NULL AND r.seq >= share.start AND r.seq <= :high::bigint
    ORDER BY r.seq LIMIT share.size
  ) AS r
), reach AS MATERIALIZED (  -- up to where all ready rows of a destination are in the window
  SELECT share.*, coalesce((SELECT max(w.seq) FROM looked w WHERE w.destination = share.destination AND w.full), :high)
    AS seen
  FROM share
), ready AS MATERIALIZED (
  SELECT r.seq FROM looked JOIN :schema.outbox_ready r ON r.ctid = looked.at FOR UPDATE OF r SKIP LOCKED
), candidate AS MATERIALIZED (
  SELECT DISTINCT reach.*, h.key
  FROM reach CROSS JOIN LATERAL (
    SELECT h.key FROM :schema.outbox_held h WHERE h.destination = reach.destination AND h.free
  ) AS h
), behind AS MATERIALIZED (
  SELECT c.destination, c.key, h.seq
  FROM candidate c CROSS JOIN LATERAL (
    SELECT h.seq FROM :schema.outbox_held h WHERE h.destination = c.destination AND h.key = c.key
    ORDER BY h.seq LIMIT c.longest
  ) AS h
), held AS MATERIALIZED (
  SELECT h.seq FROM behind JOIN :schema.outbox_held h
    ON h.destination = behind.destination AND h.key = behind.key AND h.seq = behind.seq FOR UPDATE OF h SKIP LOCKED
), queue AS MATERIALIZED (
  SELECT reach.*, r.key, r.seq, r.since, r.size AS weight, r.attempts, r.priority, r.alone, r.latest, w.at,
         w.seq IN (SELECT seq FROM ready) AS locked
  FROM reach CROSS JOIN LATERAL (SELECT * FROM looked w WHERE w.destination = reach.destination) AS w
  JOIN :schema.outbox_ready r ON r.ctid = w.at
  UNION ALL
  SELECT reach.*, h.key, h.seq, h.since, h.size, h.attempts, h.priority, h.alone, h.latest, NULL,
         h.seq IN (SELECT seq FROM held)
  FROM reach CROSS JOIN LATERAL (SELECT * FROM behind b WHERE b.destination = reach.destination) AS b
  JOIN :schema.outbox_held h ON h.destination = b.destination AND h.key = b.key AND h.seq = b.seq
), leased AS MATERIALIZED (
  SELECT l.destination, k AS key
  FROM share CROSS JOIN LATERAL (
    SELECT l.destination, l.keys FROM :schema.outbox_leases l
    WHERE l.destination = share.destination AND l.keys IS NOT NULL AND l.locked_until >= :since::timestamptz
  ) AS l CROSS JOIN LATERAL unnest(l.keys) AS k
), mark AS MATERIALIZED (
  SELECT class, min(floor) AS floor FROM json_to_recordset(:marks::json) AS m(class bigint, floor bigint) GROUP BY class
), placed AS MATERIALIZED (
  SELECT q.*, row_number() OVER key AS place, sum(q.weight) OVER key AS load, min(q.seq) OVER key AS first,
         q.since <= now() AS due,
         q.alone OR q.latest AND q.attempts > 0 OR q.attempts >= q.ceiling OR q.weight > q.largest
           OR coalesce(q.since < now() - q.oldest * interval '1 second', false) AS single
  FROM queue q WINDOW key AS (PARTITION BY q.destination, q.key ORDER BY q.seq)
), headed AS MATERIALIZED (  -- what is true of a key is found at its first row
  SELECT p.*,
         p.place = 1 AND ((p.destination, p.key) IN (SELECT destination, key FROM leased)
           OR EXISTS (SELECT FROM :schema.outbox_runs r WHERE r.destination = p.destination AND r.key = p.key)) AS leased,
         CASE WHEN p.place = 1 THEN least(  -- the first one that waits, or is a dead letter that blocks
           (SELECT min(w.seq) FROM :schema.outbox_waiting w WHERE w.destination = p.destination AND w.key = p.key),
           (SELECT min(d.seq) FROM :schema.outbox_dead d
            WHERE p.blocks AND d.destination = p.destination AND d.key = p.key)) END AS stop,
         p.place = 1 AND EXISTS (SELECT FROM :schema.outbox_held h
                                 WHERE h.destination = p.destination AND h.key = p.key) AS has_held,
         CASE WHEN p.place = 1 AND EXISTS (SELECT FROM mark) THEN (
           SELECT min(floor) FROM mark
           WHERE class = :schema.outbox_all_keys() OR class = :schema.outbox_key_class(p.destination, p.key)) END AS floor
  FROM placed p
), judged AS MATERIALIZED (
  SELECT h.*, first_value(leased OR coalesce(stop < seq, false)) OVER key AS busy,
         first_value(coalesce(stop < seq, false)) OVER key AS stopped,
         first_value(has_held) OVER key AS holds, first_value(single) OVER key AS lone,
         coalesce(seq < first_value(stop) OVER key, true) AS before,
         locked AND coalesce(seq <= first_value(floor) OVER key, true) AND (at IS NOT NULL OR seq <= seen) AS open
  FROM headed h WINDOW key AS (PARTITION BY destination, key ORDER BY seq)
), run AS MATERIALIZED (
  SELECT j.*, NOT busy AND place <= CASE WHEN lone THEN 1 ELSE longest END
           AND bool_and(open AND due AND before AND (place = 1 OR NOT single AND load <= bytes)) OVER key AS goes
  FROM judged j WINDOW key AS (PARTITION BY destination, key ORDER BY seq)
), chosen AS MATERIALIZED (
  SELECT r.*, goes AND count(*) FILTER (WHERE goes) OVER (PARTITION BY destination ORDER BY first, seq) <= size AS taken,
         place = 1 AND open AND NOT (busy OR due) AS later,
         bool_or(goes) OVER (PARTITION BY destination, key) AS follows
  FROM run r
), gone AS (
  DELETE FROM :schema.outbox_ready r USING chosen c WHERE r.ctid = c.at AND c.locked AND (c.taken OR NOT c.goes)
), freed AS (
  DELETE FROM :schema.outbox_held h USING chosen c
  WHERE h.destination = c.destination AND h.key = c.key AND h.seq = c.seq AND c.at IS NULL AND (c.taken OR c.later)
), waiting AS (
  INSERT INTO :schema.outbox_waiting (seq, due, since, size, attempts, priority, alone, latest, destination, key)
  SELECT seq, since, since, weight, attempts, priority, alone, latest, destination, key FROM chosen WHERE later
), put_aside AS (
  INSERT INTO :schema.outbox_held (destination, key, seq, since, size, attempts, priority, alone, latest, free)
  SELECT destination, key, seq, since, weight, attempts, priority, alone, latest,
         NOT (holds OR follows) AND row_number() OVER (PARTITION BY destination, key ORDER BY seq) = 1
  FROM chosen WHERE at IS NOT NULL AND locked AND NOT (goes OR later)
), stopped AS (
  UPDATE :schema.outbox_held h SET free = false FROM chosen c
  WHERE c.stopped AND c.at IS NULL AND c.locked AND h.destination = c.destination AND h.key = c.key AND h.seq = c.seq AND h.free
)
SELECT c.seq, m.id::text, m.event_type, date_part('epoch', now() - c.since) AS age, c.weight AS size, c.attempts, c.priority,
       c.alone, c.destination, c.key,
       c.latest AND c.attempts > 0 AND EXISTS (
         SELECT FROM queue n WHERE n.destination = c.destination AND n.key = c.key AND n.seq > c.seq AND n.since <= now()
       ) AS superseded, NULL::bigint AS next
FROM chosen c JOIN :schema.outbox_messages m ON m.seq = c.seq
WHERE c.taken
UNION ALL
SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, reach.destination, NULL, NULL,
       coalesce((SELECT min(c.seq) FROM chosen c
                 WHERE c.destination = reach.destination AND c.at IS NOT NULL AND (NOT c.locked OR c.goes AND NOT c.taken)),
                reach.seen + 1)
FROM reach
