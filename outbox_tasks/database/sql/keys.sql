-- Takes messages that have keys. Part of schema.sql.

-- Both functions take due messages of a destination, lease them, and return their numbers and leases. There are three cases:
--   1. token, and begun: a drain's batch. All messages are under this lease, and their send has begun. A message that is sent by itself
--      is a batch of its own.
--   2. token, and not begun: a probe. One message is taken, and its send has not begun.
--   3. no token: singles. The first message of each key is taken, each under a lease of its own.
-- who: the holder; hold: seconds of the lease; most: messages; run: messages of one key; bytes: of all payloads, but one message is
-- taken in any case. A crash of the server may undo a take: then the messages are sent again. No take waits for an application:
-- messages that another transaction has locked stay for the next take.

CREATE FUNCTION outbox_take_held(
  target text, token uuid, begun boolean, who text, hold float, most integer, run integer, bytes bigint, free_since timestamptz,
  blocks boolean
) RETURNS TABLE (seq bigint, lease uuid, id text, event_type text, attempts integer, all_before timestamptz) LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET enable_hashjoin = on SET enable_nestloop = off AS $$
-- Takes held messages of free keys: of the keys that became free first, but of none that became free before `free_since`. A key of
-- which nothing is held loses its row. The keys are locked before the statement that reads their messages takes its snapshot: so it
-- sees every message that was held or cancelled before. blocks: dead letters hold up their keys. The row of a key only says when to
-- look; whether its first message may go, the messages that are found decide.
-- A row without a number says that all keys that became free before `all_before` have been looked at.
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
  WITH free AS MATERIALIZED (
    SELECT k.ctid AS at, k.key, k.first, CASE WHEN walls THEN (
             SELECT min(d.seq) FROM outbox_dead d WHERE d.destination = target AND d.key = k.key AND d.seq >= k.first) END AS wall
    FROM outbox_keys k WHERE k.destination = target AND k.key = ANY (free_keys)
  ), size AS MATERIALIZED (
    SELECT CASE WHEN begun THEN least(run, 1 + most / cardinality(free_keys)) ELSE 1 END AS of_key
  ), queue AS MATERIALIZED (
    SELECT f.key, f.wall, h.*, row_number() OVER (PARTITION BY f.key ORDER BY h.seq) AS place
    FROM size CROSS JOIN free f CROSS JOIN LATERAL (
      SELECT h.ctid AS at, h.seq, h.since, h.size, h.attempts, h.alone FROM outbox_held h
      WHERE h.destination = target AND h.key = f.key AND h.seq >= f.first ORDER BY h.seq LIMIT size.of_key + 1) AS h
  ), locked AS MATERIALIZED (
    SELECT h.ctid AS at FROM outbox_held h
    WHERE h.ctid = ANY (ARRAY(SELECT q.at FROM queue q CROSS JOIN size WHERE q.place <= size.of_key)) FOR UPDATE SKIP LOCKED
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
  ), owned AS MATERIALIZED (
    SELECT t.key, coalesce(token, gen_random_uuid()) AS lease, max(t.seq) AS last, count(*) AS count FROM taken t GROUP BY t.key
  ), leased AS (
    INSERT INTO outbox_leases (token, locked_until, begun_at, destination, holder, seqs)
    SELECT o.lease, moment + hold * interval '1 second', CASE WHEN begun THEN moment END, target, who, array_agg(t.seq ORDER BY t.seq)
    FROM taken t JOIN owned o ON o.key = t.key GROUP BY o.lease
  ), gone AS (
    DELETE FROM outbox_held h WHERE h.ctid = ANY (ARRAY(SELECT t.at FROM taken t))
  ), state AS MATERIALIZED (
    SELECT f.at, o.lease, o.last, count(q.seq) > coalesce(o.count, 0) OR f.wall IS NOT NULL AS more,
           count(q.seq) = 0 AND f.wall IS NULL AS empty,
           CASE WHEN f.wall <= coalesce(min(q.seq), f.wall) THEN 'infinity'  -- null: another transaction has locked the first message
                ELSE min(q.since) FILTER (WHERE q.place = 1 AND q.at IN (SELECT locked.at FROM locked)) END AS since
    FROM free f LEFT JOIN queue q ON q.key = f.key LEFT JOIN owned o ON o.key = f.key
    GROUP BY f.at, f.wall, o.lease, o.last, o.count
  ), busy AS (
    UPDATE outbox_keys k SET token = s.lease, due = 'infinity', more = s.more, first = s.last
    FROM state s WHERE k.ctid = s.at AND s.lease IS NOT NULL
  ), early AS (
    UPDATE outbox_keys k SET due = s.since FROM state s WHERE k.ctid = s.at AND s.lease IS NULL AND s.since > moment
  ), empty AS (
    DELETE FROM outbox_keys k WHERE k.ctid = ANY (ARRAY(SELECT s.at FROM state s WHERE s.empty))
  )
  SELECT t.seq, o.lease, m.id, m.event_type, m.attempts, NULL::timestamptz
  FROM taken t JOIN owned o ON o.key = t.key
  LEFT JOIN LATERAL (  -- of a single, what its task says; the messages of a batch are read later
    SELECT m.id::text, m.event_type, coalesce((SELECT x.attempts FROM outbox_trouble x WHERE x.seq = t.seq), 0) AS attempts
    FROM outbox_messages m WHERE m.seq = t.seq AND NOT begun LIMIT 1) AS m ON true
  UNION ALL
  SELECT NULL, NULL, NULL, NULL, NULL, moment
  WHERE NOT skipped
    AND NOT EXISTS (SELECT FROM state s WHERE s.lease IS NULL AND NOT s.empty AND (s.since IS NULL OR s.since <= moment));
END
$$;

CREATE FUNCTION outbox_take_new(
  target text, token uuid, begun boolean, who text, hold float, most integer, run integer, bytes bigint, start bigint, reach integer
) RETURNS TABLE (seq bigint, lease uuid, id text, event_type text, attempts integer, whole boolean) LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET enable_hashjoin = on SET enable_nestloop = off AS $$
-- Takes new messages with a key. It looks at the first `reach` messages from the number `start` on. There are four cases:
--   1. The key has no row: it gets one, and its first messages are taken. If one key may fill the batch, keys with few messages go
--      first: a batch that had all keys would leave nothing to other drains. Else the keys take turns: a publisher that does not keep
--      the order sends as many messages at once as there are keys.
--   2. A message behind one of this batch stays in ready: this drain looks again.
--   3. A message behind the batch of another drain stays in ready, too: that drain looks again. This is not so if that batch has one
--      message: it may be a single, and after a single nobody looks again unless a message of the key is held.
--   4. A message behind anything else is held from now on: behind a single, a run, a wait, a dead letter.
-- In two situations no message stays in ready, and those of the cases 2 and 3 are held, too. First, if `reach` messages were looked at
-- and fill less than half a batch: messages of other keys may be behind them. Second, if run is 1, as for supervised tasks: a task that
-- was handed over has its key until it has run.
-- One such take at a time runs for a destination, because two could take messages of one key out of order.
-- A row without a lease says from which number the next take may start, and whether this take has looked at all of ready (whole).
#variable_conflict use_column
DECLARE
  moment CONSTANT timestamptz := clock_timestamp();
  lot CONSTANT integer := CASE WHEN token IS NULL OR begun THEN most ELSE 1 END;
  of_key CONSTANT integer := CASE WHEN begun THEN run ELSE 1 END;
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
  WITH look AS MATERIALIZED (
    SELECT r.ctid AS at, r.seq, r.key, r.since, r.size FROM outbox_ready r
    WHERE r.destination = target AND r.key IS NOT NULL AND r.seq >= start AND r.seq <= high
      AND (lowest IS NULL OR r.seq <= lowest OR outbox_comes_next(target, r.key, r.seq, classes, floors))
    ORDER BY r.seq LIMIT reach
  ), own AS MATERIALIZED (  -- the keys; early: the first message whose time has not come
    SELECT look.key, min(look.seq) AS first, min(look.seq) FILTER (WHERE look.since > moment) AS early, count(*) AS count
    FROM look GROUP BY look.key
  ), known AS MATERIALIZED (  -- the keys that have a row
    SELECT k.key, k.token FROM outbox_keys k WHERE k.destination = target AND k.key = ANY (ARRAY(SELECT own.key FROM own))
  ), batch AS MATERIALIZED (  -- the batches of other drains that have some of these keys
    SELECT l.token FROM outbox_leases l
    WHERE l.token = ANY (ARRAY(SELECT DISTINCT known.token FROM known)) AND l.begun_at IS NOT NULL AND cardinality(l.seqs) > 1
  ), free AS MATERIALIZED (
    SELECT own.*, sum(least(own.count, of_key)) OVER turn - least(own.count, of_key) AS before, row_number() OVER turn AS turn
    FROM own LEFT JOIN known ON known.key = own.key WHERE known.key IS NULL AND own.early IS DISTINCT FROM own.first
    WINDOW turn AS (ORDER BY CASE WHEN begun THEN own.count END, own.first)
  ), goer AS MATERIALIZED (  -- the messages that may be taken: of each free key its first ones
    SELECT q.at, q.seq, q.key FROM (
      SELECT q.*, row_number() OVER turn AS turn, sum(q.size) OVER turn AS total FROM (
        SELECT look.*, free.turn AS of, free.early, row_number() OVER (PARTITION BY free.turn ORDER BY look.seq) AS place
        FROM look JOIN free ON free.key = look.key WHERE free.before < lot OR run < most) AS q
      WHERE q.place <= of_key AND (q.early IS NULL OR q.seq < q.early)
      WINDOW turn AS (ORDER BY CASE WHEN run < most THEN q.place END, q.of, q.seq)) AS q
    WHERE q.turn <= lot AND (q.turn = 1 OR q.total <= bytes)
  ), room AS MATERIALIZED (  -- stays: whether messages of the cases 2 and 3 stay in ready
    SELECT begun AND run > 1 AND ((SELECT count(*) FROM look) < reach OR 2 * count(*) >= most
                      OR count(*) < (SELECT least(lot, coalesce(max(free.before) + 1, 0)) FROM free)) AS stays
    FROM goer
  ), rest AS MATERIALIZED (  -- the keys of which the other messages are held
    SELECT own.key, own.first, known.key IS NOT NULL AS is_known FROM own LEFT JOIN known ON known.key = own.key CROSS JOIN room
    WHERE CASE WHEN known.key IS NOT NULL THEN NOT room.stays OR known.token IS NULL OR known.token NOT IN (SELECT batch.token FROM batch)
               ELSE own.early = own.first OR NOT room.stays AND own.key IN (SELECT goer.key FROM goer) END
  ), wanted AS MATERIALIZED (  -- the messages that leave ready, to be sent or to be held
    SELECT goer.at, goer.seq, goer.key, NULL::timestamptz AS since, true AS goes, false AS is_known FROM goer
    UNION ALL
    SELECT look.at, look.seq, look.key, CASE WHEN look.seq = rest.first THEN look.since END, false, rest.is_known
    FROM look JOIN rest ON rest.key = look.key
    WHERE look.seq NOT IN (SELECT goer.seq FROM goer)
  ), locked AS MATERIALIZED (
    SELECT r.ctid AS at FROM outbox_ready r WHERE r.ctid = ANY (ARRAY(SELECT w.at FROM wanted w)) FOR UPDATE SKIP LOCKED
  ), stop AS MATERIALIZED (  -- a message behind one that another transaction has locked stays in ready
    SELECT w.key, min(w.seq) AS seq FROM wanted w WHERE w.at NOT IN (SELECT locked.at FROM locked) GROUP BY w.key
  ), ours AS MATERIALIZED (
    SELECT w.* FROM wanted w LEFT JOIN stop ON stop.key = w.key WHERE stop.seq IS NULL OR w.seq < stop.seq
  ), busy AS MATERIALIZED (  -- locked: a settle that frees one of these keys waits for this take, and then sees that more is held
    SELECT k.key FROM outbox_keys k
    WHERE k.destination = target AND k.key = ANY (ARRAY(SELECT DISTINCT o.key FROM ours o WHERE o.is_known)) FOR UPDATE SKIP LOCKED
  ), tried AS (
    INSERT INTO outbox_keys AS k (destination, key, token, due, more)
    SELECT target, o.key, CASE WHEN bool_or(o.goes) THEN coalesce(token, gen_random_uuid()) END,
           CASE WHEN bool_or(o.goes) THEN 'infinity' ELSE min(o.since) END, NOT bool_and(o.goes)
    FROM ours o WHERE NOT o.is_known GROUP BY o.key ORDER BY o.key
    ON CONFLICT DO NOTHING RETURNING k.key, k.token
  ), mover AS MATERIALIZED (
    SELECT o.at, o.seq, o.key, CASE WHEN o.goes THEN tried.token END AS lease FROM ours o JOIN tried ON tried.key = o.key
    UNION ALL
    SELECT o.at, o.seq, o.key, NULL FROM ours o JOIN busy ON busy.key = o.key
  ), taken AS MATERIALIZED (
    SELECT m.seq, m.lease FROM mover m WHERE m.lease IS NOT NULL
  ), leased AS (
    INSERT INTO outbox_leases (token, locked_until, begun_at, destination, holder, seqs)
    SELECT t.lease, moment + hold * interval '1 second', CASE WHEN begun THEN moment END, target, who, array_agg(t.seq ORDER BY t.seq)
    FROM taken t GROUP BY t.lease
  ), gone AS (
    DELETE FROM outbox_ready r WHERE r.ctid = ANY (ARRAY(SELECT m.at FROM mover m)) RETURNING r.*
  ), aside AS (
    INSERT INTO outbox_held (destination, key, seq, since, size)
    SELECT g.destination, g.key, g.seq, g.since, g.size FROM gone g WHERE g.seq NOT IN (SELECT t.seq FROM taken t)
  ), longer AS (  -- not an UPDATE, which would miss a row that a take of held messages has changed since this statement began
    INSERT INTO outbox_keys AS k (destination, key, more, first)
    SELECT target, busy.key, true, min(m.seq) FROM busy JOIN mover m ON m.key = busy.key GROUP BY busy.key ORDER BY busy.key
    ON CONFLICT (destination, key) DO UPDATE SET more = true, first = least(k.first, excluded.first)
    WHERE NOT (k.more AND k.first <= excluded.first)
  )
  SELECT t.seq, t.lease, m.id, m.event_type, m.attempts, NULL::boolean
  FROM taken t
  LEFT JOIN LATERAL (  -- of a single, what its task says; the messages of a batch are read later
    SELECT m.id::text, m.event_type, coalesce((SELECT x.attempts FROM outbox_trouble x WHERE x.seq = t.seq), 0) AS attempts
    FROM outbox_messages m WHERE m.seq = t.seq AND NOT begun LIMIT 1) AS m ON true
  UNION ALL
  SELECT 1 + least(lowest, CASE WHEN count(*) < reach THEN high ELSE max(look.seq) END,
                   min(look.seq) FILTER (WHERE look.seq NOT IN (SELECT m.seq FROM mover m)) - 1),
         NULL, NULL, NULL, NULL, count(*) < reach
  FROM look;
END
$$;
