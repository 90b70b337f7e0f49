-- Takes messages that have keys. Part of schema.sql.

-- Both functions take due messages of a destination, lease them, and return their numbers and leases. There are three cases:
--   1. token, and begun: a drain's batch. All messages are under this lease, and their send has begun. A message that is sent by itself
--      is a batch of its own.
--   2. token, and not begun: a probe. One message is taken, and its send has not begun.
--   3. no token: singles. The first message of each key is taken, each under a lease of its own.
-- who: the holder; hold: seconds of the lease; most: messages; of_key: messages of one key at most; bytes: of all payloads, but one
-- message is taken in any case. A crash of the server may undo a take: then the messages are sent again. No take waits for an
-- application: a message that another transaction has locked stays where it is, and so do those behind it.

CREATE FUNCTION outbox_take_held(
  target text, token uuid, begun boolean, who text, hold float, most integer, of_key integer, bytes bigint, free_since timestamptz,
  blocks boolean
) RETURNS TABLE (seq bigint, lease uuid, id text, event_type text, attempts integer, all_before timestamptz) LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET enable_hashjoin = on SET enable_nestloop = off AS $$
-- Takes held messages of free keys: of the keys that became free first, but of none that became free before `free_since`. The row of a
-- key only says when to look: whether its first message may go, the messages that are found decide. blocks: dead letters hold up their
-- keys. One row has no number: it says that all keys that became free before `all_before` have been looked at.
#variable_conflict use_column
DECLARE
  moment CONSTANT timestamptz := clock_timestamp();
  lot CONSTANT integer := CASE WHEN token IS NULL OR begun THEN most ELSE 1 END;
  free_keys text[];
  skipped boolean;  -- some free keys were not locked: there are more than `most`, or another take has locked them
  walls boolean;    -- the destination has dead letters that hold up their keys
BEGIN
  IF begun AND outbox_is_shut(target) THEN
    RETURN;
  END IF;
  PERFORM set_config('synchronous_commit', 'off', true);
  -- The keys are locked before the statement that reads their messages takes its snapshot. So it sees every message that was held or
  -- cancelled before.
  free_keys := ARRAY(
    SELECT f.key FROM (
      SELECT k.key FROM outbox_keys k WHERE k.destination = target AND k.token IS NULL AND k.due = '-infinity'
      LIMIT most FOR UPDATE SKIP LOCKED) AS f
    UNION ALL
    SELECT f.key FROM (
      SELECT k.key FROM outbox_keys k
      WHERE k.destination = target AND k.token IS NULL AND k.due <= moment AND k.due >= free_since AND k.due > '-infinity'
      ORDER BY k.due LIMIT most FOR UPDATE SKIP LOCKED) AS f
    LIMIT most);
  skipped := cardinality(free_keys) = most OR cardinality(free_keys) < (SELECT count(*) FROM (
    SELECT FROM outbox_keys k WHERE k.destination = target AND k.token IS NULL AND k.due = '-infinity'
    UNION ALL
    SELECT FROM outbox_keys k
    WHERE k.destination = target AND k.token IS NULL AND k.due <= moment AND k.due >= free_since AND k.due > '-infinity'
    LIMIT most) AS f);
  IF free_keys = '{}' THEN
    RETURN QUERY SELECT NULL::bigint, NULL::uuid, NULL, NULL, NULL::integer, moment WHERE NOT skipped;
    RETURN;
  END IF;
  walls := blocks AND EXISTS (SELECT FROM outbox_dead d WHERE d.destination = target);
  RETURN QUERY
  WITH locked_key AS MATERIALIZED (  -- wall: the first dead letter that holds it up
    SELECT k.ctid AS at, k.key, k.first, CASE WHEN walls THEN (
             SELECT min(d.seq) FROM outbox_dead d WHERE d.destination = target AND d.key = k.key AND d.seq >= k.first) END AS wall
    FROM outbox_keys k WHERE k.destination = target AND k.key = ANY (free_keys)
  ), share AS MATERIALIZED (  -- how many messages of each key may be taken
    SELECT least(of_key, 1 + most / cardinality(free_keys)) AS count
  ), queue AS MATERIALIZED (  -- of each key the first messages, and one more: it says whether something stays behind
    SELECT k.key, k.wall, h.*, row_number() OVER (PARTITION BY k.key ORDER BY h.seq) AS place
    FROM share CROSS JOIN locked_key k CROSS JOIN LATERAL (
      SELECT h.ctid AS at, h.seq, h.since, h.size, h.attempts, h.alone FROM outbox_held h
      WHERE h.destination = target AND h.key = k.key AND h.seq >= k.first ORDER BY h.seq LIMIT share.count + 1) AS h
  ), locked AS MATERIALIZED (
    SELECT h.ctid AS at FROM outbox_held h
    WHERE h.ctid = ANY (ARRAY(SELECT q.at FROM queue q CROSS JOIN share WHERE q.place <= share.count)) FOR UPDATE SKIP LOCKED
  ), front AS MATERIALIZED (  -- of each key the first messages that may go, in the order in which they are taken
    SELECT q.*, row_number() OVER turn AS turn, sum(q.size) OVER turn AS total
    FROM (
      SELECT q.*, bool_and(q.at IN (SELECT locked.at FROM locked) AND q.since <= moment AND (q.place = 1 OR NOT q.alone)
                         AND (q.wall IS NULL OR q.seq < q.wall))
                    OVER (PARTITION BY q.key ORDER BY q.seq) AS goes
      FROM queue q) AS q
    WHERE q.goes
    WINDOW turn AS (ORDER BY begun AND NOT q.alone, NOT begun AND token IS NOT NULL AND q.attempts > 0, q.place, q.seq)
  ), taken AS MATERIALIZED (
    SELECT f.* FROM front f
    WHERE f.turn <= lot AND (f.turn = 1 OR f.total <= bytes AND NOT (begun AND (SELECT a.alone FROM front a WHERE a.turn = 1)))
  ), taken_key AS MATERIALIZED (
    SELECT t.key, coalesce(token, gen_random_uuid()) AS lease, max(t.seq) AS last, count(*) AS count FROM taken t GROUP BY t.key
  ), leased AS (
    INSERT INTO outbox_leases (token, locked_until, begun_at, destination, holder, seqs)
    SELECT k.lease, moment + hold * interval '1 second', CASE WHEN begun THEN moment END, target, who, array_agg(t.seq ORDER BY t.seq)
    FROM taken t JOIN taken_key k ON k.key = t.key GROUP BY k.lease
  ), gone AS (
    DELETE FROM outbox_held h WHERE h.ctid = ANY (ARRAY(SELECT t.at FROM taken t))
  -- What becomes of the row of each key? There are five cases.
  -- 1. Messages of it were taken: it has their lease.
  -- 2. Nothing of it is held, and no dead letter holds it up: the row goes.
  -- 3. A dead letter is in front: it waits for a person, to infinity.
  -- 4. The time of its first message has not come: it waits for that.
  -- 5. Another transaction has locked its first message: the row stays as it is, and the next take looks again.
  ), key_state AS MATERIALIZED (  -- since: until when it waits; null in case 5
    SELECT k.at, t.lease, t.last, count(q.seq) > coalesce(t.count, 0) OR k.wall IS NOT NULL AS more,
           count(q.seq) = 0 AND k.wall IS NULL AS empty,
           CASE WHEN k.wall <= coalesce(min(q.seq), k.wall) THEN 'infinity'
                ELSE min(q.since) FILTER (WHERE q.place = 1 AND q.at IN (SELECT locked.at FROM locked)) END AS since
    FROM locked_key k LEFT JOIN queue q ON q.key = k.key LEFT JOIN taken_key t ON t.key = k.key
    GROUP BY k.at, k.wall, t.lease, t.last, t.count
  ), busy_key AS (
    UPDATE outbox_keys k SET token = s.lease, due = 'infinity', more = s.more, first = s.last
    FROM key_state s WHERE k.ctid = s.at AND s.lease IS NOT NULL
  ), empty_key AS (
    DELETE FROM outbox_keys k WHERE k.ctid = ANY (ARRAY(SELECT s.at FROM key_state s WHERE s.empty))
  ), waiting_key AS (
    UPDATE outbox_keys k SET due = s.since FROM key_state s WHERE k.ctid = s.at AND s.since > moment
  )
  SELECT t.seq, k.lease, m.id, m.event_type, m.attempts, NULL::timestamptz
  FROM taken t JOIN taken_key k ON k.key = t.key LEFT JOIN LATERAL (  -- of a single, what its task says; the messages of a batch are read later
    SELECT m.id::text, m.event_type, coalesce((SELECT x.attempts FROM outbox_trouble x WHERE x.seq = t.seq), 0) AS attempts
    FROM outbox_messages m WHERE m.seq = t.seq AND NOT begun LIMIT 1) AS m ON true
  UNION ALL
  SELECT NULL, NULL, NULL, NULL, NULL, moment
  WHERE NOT skipped
    AND NOT EXISTS (SELECT FROM key_state s WHERE s.lease IS NULL AND NOT s.empty AND (s.since IS NULL OR s.since <= moment));
END
$$;

CREATE FUNCTION outbox_take_new(
  target text, token uuid, begun boolean, who text, hold float, most integer, of_key integer, bytes bigint, start bigint, since_life text,
  reach integer
) RETURNS TABLE (
  seq bigint, lease uuid, id text, event_type text, attempts integer, next_start bigint, life text, whole boolean
) LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT SET enable_hashjoin = on SET enable_nestloop = off AS $$
-- Takes new messages with a key. It looks at the first `reach` of them, from the number `start` on. One such take at a time runs for a
-- destination, because two could take messages of one key out of order.
-- One row has no number. It says from which number the next take may start (next_start), when the server began to count (life), and
-- whether this take has looked at all of ready (whole). If `since_life` is another life, the server has crashed, which undoes takes: then
-- this take looks from the first number on.
#variable_conflict use_column
DECLARE
  moment CONSTANT timestamptz := clock_timestamp();
  now_life CONSTANT text := pg_stat_get_bgwriter_stat_reset_time()::text;
  from_number CONSTANT bigint := CASE WHEN since_life = now_life THEN start ELSE 0 END;
  lot CONSTANT integer := CASE WHEN token IS NULL OR begun THEN most ELSE 1 END;
  high bigint;
  classes bigint[];
  floors bigint[];
  lowest bigint;
BEGIN
  IF begun AND outbox_is_shut(target) THEN
    RETURN;
  END IF;
  PERFORM set_config('synchronous_commit', 'off', true);
  PERFORM pg_advisory_xact_lock(hashtextextended(current_setting('search_path') || ' keys ' || target, 0));
  SELECT w.high, w.classes, w.floors INTO high, classes, floors FROM outbox_open_writers() AS w;
  lowest := (SELECT min(f) FROM unnest(floors) AS f);
  RETURN QUERY
  -- What becomes of each message that this take looks at? There are four cases.
  -- 1. Its key has no row, and the message is among the first of its key: it is taken, and the key gets a row.
  -- 2. It is behind such messages of its key: it stays in ready, and this drain looks again.
  -- 3. It is behind the batch of another drain: it stays in ready, and that drain looks again. This is not so if that batch has one
  --    message: it may be a single, and after a single nobody looks again unless a message of the key is held.
  -- 4. It is behind anything else, such as a single, a run, a wait or a dead letter: it is held from now on.
  WITH looked AS MATERIALIZED (
    SELECT r.ctid AS at, r.seq, r.key, r.since, r.size FROM outbox_ready r
    WHERE r.destination = target AND r.key IS NOT NULL AND r.seq >= from_number AND r.seq <= high
      AND (lowest IS NULL OR r.seq <= lowest OR outbox_comes_next(target, r.key, r.seq, classes, floors))
    ORDER BY r.seq LIMIT reach
  ), looked_key AS MATERIALIZED (  -- early: its first message whose time has not come
    SELECT m.key, min(m.seq) AS first, min(m.seq) FILTER (WHERE m.since > moment) AS early, count(*) AS count
    FROM looked m GROUP BY m.key
  ), known_key AS MATERIALIZED (  -- the keys that have a row
    SELECT k.key, k.token FROM outbox_keys k WHERE k.destination = target AND k.key = ANY (ARRAY(SELECT l.key FROM looked_key l))
  -- Case 1. If one key may fill the batch, keys with few messages go first: a batch that had all keys would leave nothing to other
  -- drains. Else the keys take turns: a publisher that does not keep the order sends as many messages at once as there are keys.
  ), free_key AS MATERIALIZED (  -- before: how many messages of the keys before it may be taken
    SELECT k.*, sum(least(k.count, of_key)) OVER turn - least(k.count, of_key) AS before, row_number() OVER turn AS turn
    FROM looked_key k WHERE k.key NOT IN (SELECT known_key.key FROM known_key) AND k.early IS DISTINCT FROM k.first
    WINDOW turn AS (ORDER BY CASE WHEN begun THEN k.count END, k.first)
  ), candidate AS MATERIALIZED (
    SELECT q.at, q.seq, q.key FROM (
      SELECT q.*, row_number() OVER turn AS turn, sum(q.size) OVER turn AS total FROM (
        SELECT m.*, k.turn AS key_turn, k.early, row_number() OVER (PARTITION BY k.turn ORDER BY m.seq) AS place
        FROM looked m JOIN free_key k ON k.key = m.key WHERE k.before < lot OR of_key < most) AS q
      WHERE q.place <= of_key AND (q.early IS NULL OR q.seq < q.early)
      WINDOW turn AS (ORDER BY CASE WHEN of_key < most THEN q.place END, q.key_turn, q.seq)) AS q
    WHERE q.turn <= lot AND (q.turn = 1 OR q.total <= bytes)
  -- Do the messages of the cases 2 and 3 stay in ready? They are held in two situations. 1. `reach` messages were looked at, and fill
  -- less than half a batch: messages of other keys may be behind them. 2. of_key is 1, as for supervised tasks: a task that was handed
  -- over has its key until it has run.
  ), rule AS MATERIALIZED (
    SELECT of_key > 1 AND ((SELECT count(*) FROM looked) < reach OR 2 * count(*) >= most
                           OR count(*) < (SELECT least(lot, coalesce(max(k.before) + 1, 0)) FROM free_key k)) AS stays
    FROM candidate
  ), other_batch AS MATERIALIZED (  -- case 3
    SELECT l.token FROM outbox_leases l
    WHERE l.token = ANY (ARRAY(SELECT DISTINCT known_key.token FROM known_key)) AND l.begun_at IS NOT NULL AND cardinality(l.seqs) > 1
  ), held_key AS MATERIALIZED (  -- the keys of which the other messages are held
    SELECT l.key, l.first, k.key IS NOT NULL AS is_known FROM looked_key l LEFT JOIN known_key k ON k.key = l.key CROSS JOIN rule
    WHERE CASE WHEN k.key IS NOT NULL THEN NOT rule.stays OR k.token IS NULL OR k.token NOT IN (SELECT b.token FROM other_batch b)
               ELSE l.early = l.first OR NOT rule.stays AND l.key IN (SELECT c.key FROM candidate c) END
  ), leaving AS MATERIALIZED (  -- the messages that leave ready: they are taken, or held
    SELECT c.at, c.seq, c.key, NULL::timestamptz AS since, true AS is_taken, false AS is_known FROM candidate c
    UNION ALL
    SELECT m.at, m.seq, m.key, CASE WHEN m.seq = k.first THEN m.since END, false, k.is_known
    FROM looked m JOIN held_key k ON k.key = m.key WHERE m.seq NOT IN (SELECT c.seq FROM candidate c)
  ), locked AS MATERIALIZED (
    SELECT r.ctid AS at FROM outbox_ready r WHERE r.ctid = ANY (ARRAY(SELECT l.at FROM leaving l)) FOR UPDATE SKIP LOCKED
  ), stop AS MATERIALIZED (  -- of each key the first message that another transaction has locked
    SELECT l.key, min(l.seq) AS seq FROM leaving l WHERE l.at NOT IN (SELECT locked.at FROM locked) GROUP BY l.key
  ), ours AS MATERIALIZED (
    SELECT l.* FROM leaving l LEFT JOIN stop ON stop.key = l.key WHERE stop.seq IS NULL OR l.seq < stop.seq
  ), busy_key AS MATERIALIZED (  -- locked: a settle that frees one of these keys waits for this take, and then sees that more is held
    SELECT k.key FROM outbox_keys k
    WHERE k.destination = target AND k.key = ANY (ARRAY(SELECT DISTINCT o.key FROM ours o WHERE o.is_known)) FOR UPDATE SKIP LOCKED
  ), new_key AS (
    INSERT INTO outbox_keys AS k (destination, key, token, due, more)
    SELECT target, o.key, CASE WHEN bool_or(o.is_taken) THEN coalesce(token, gen_random_uuid()) END,
           CASE WHEN bool_or(o.is_taken) THEN 'infinity' ELSE min(o.since) END, NOT bool_and(o.is_taken)
    FROM ours o WHERE NOT o.is_known GROUP BY o.key ORDER BY o.key
    ON CONFLICT DO NOTHING RETURNING k.key, k.token
  ), moved AS MATERIALIZED (  -- without a lease it is held
    SELECT o.at, o.seq, o.key, CASE WHEN o.is_taken THEN k.token END AS lease FROM ours o JOIN new_key k ON k.key = o.key
    UNION ALL
    SELECT o.at, o.seq, o.key, NULL FROM ours o JOIN busy_key k ON k.key = o.key
  ), leased AS (
    INSERT INTO outbox_leases (token, locked_until, begun_at, destination, holder, seqs)
    SELECT m.lease, moment + hold * interval '1 second', CASE WHEN begun THEN moment END, target, who, array_agg(m.seq ORDER BY m.seq)
    FROM moved m WHERE m.lease IS NOT NULL GROUP BY m.lease
  ), gone AS (
    DELETE FROM outbox_ready r WHERE r.ctid = ANY (ARRAY(SELECT m.at FROM moved m)) RETURNING r.*
  ), held AS (
    INSERT INTO outbox_held (destination, key, seq, since, size)
    SELECT g.destination, g.key, g.seq, g.since, g.size FROM gone g WHERE g.seq NOT IN (SELECT m.seq FROM moved m WHERE m.lease IS NOT NULL)
  ), longer_key AS (  -- not an UPDATE, which would miss a row that a take of held messages has changed since this statement began
    INSERT INTO outbox_keys AS k (destination, key, more, first)
    SELECT target, b.key, true, min(m.seq) FROM busy_key b JOIN moved m ON m.key = b.key GROUP BY b.key ORDER BY b.key
    ON CONFLICT (destination, key) DO UPDATE SET more = true, first = least(k.first, excluded.first)
    WHERE NOT (k.more AND k.first <= excluded.first)
  )
  SELECT t.seq, t.lease, m.id, m.event_type, m.attempts, NULL::bigint, NULL, NULL::boolean
  FROM moved t LEFT JOIN LATERAL (  -- of a single, what its task says; the messages of a batch are read later
    SELECT m.id::text, m.event_type, coalesce((SELECT x.attempts FROM outbox_trouble x WHERE x.seq = t.seq), 0) AS attempts
    FROM outbox_messages m WHERE m.seq = t.seq AND NOT begun LIMIT 1) AS m ON true
  WHERE t.lease IS NOT NULL
  UNION ALL
  SELECT NULL, NULL, NULL, NULL, NULL,
         1 + least(lowest, CASE WHEN count(*) < reach THEN high ELSE max(m.seq) END,
                   min(m.seq) FILTER (WHERE m.seq NOT IN (SELECT moved.seq FROM moved)) - 1),
         now_life, count(*) < reach
  FROM looked m;
END
$$;
