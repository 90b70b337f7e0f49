-- Discards messages. Part of schema.sql.

CREATE FUNCTION outbox_discard(
  ids uuid[], waiting boolean, dead_by timestamptz, note jsonb, as_code text, as_error text, kept boolean DEFAULT true
) RETURNS SETOF uuid LANGUAGE plpgsql SET search_path FROM CURRENT SET plan_cache_mode = force_custom_plan AS $$
-- Takes messages with these ids: `waiting` ones, which are not on their way, and those that were dead by `dead_by` (null:
-- none). They go to the journal; if they are not to be `kept`, they are deleted. Returns the ids of what it took.
--
-- A message that a take has locked at this moment is skipped, not waited for. A single that waits for Celery's retry can be taken until it
-- is begun; a supervised task until it runs. An application may call this and go on for long, so it locks no key that a lease or a
-- run has: the settle or the end of the run must not wait for it.
-- as_code: null: the last error stays, if there is one. as_error: if there was no error.
DECLARE
  asked CONSTANT bigint[] := ARRAY(SELECT m.seq FROM outbox_messages m WHERE m.id = ANY (ids) ORDER BY m.seq);
  gone bigint[] := '{}';
  owners bigint[] := '{}';  -- of these the key was busy, and is free now
  part bigint[];
BEGIN
  IF waiting THEN
    part := ARRAY(SELECT w.seq FROM outbox_waiting w WHERE w.seq = ANY (asked) FOR UPDATE SKIP LOCKED);
    DELETE FROM outbox_waiting w WHERE w.seq = ANY (part);
    gone := gone || part;
    WITH here AS (
      DELETE FROM outbox_held h WHERE h.ctid = ANY (ARRAY(
        SELECT h.ctid FROM outbox_messages m
        JOIN outbox_held h ON h.destination = m.destination AND h.key = m.key AND h.seq = m.seq
        WHERE m.seq = ANY (asked) FOR UPDATE OF h SKIP LOCKED)) RETURNING h.seq
    ) SELECT coalesce(array_agg(seq), '{}') INTO part FROM here;
    gone := gone || part;
    WITH here AS (
      DELETE FROM outbox_ready r WHERE r.ctid = ANY (ARRAY(
        SELECT r.ctid FROM outbox_ready r
        WHERE r.seq BETWEEN asked[1] AND asked[cardinality(asked)]  -- a plan that knows both reads little by the BRIN index
          AND r.seq IN (SELECT unnest(asked)) FOR UPDATE OF r SKIP LOCKED)) RETURNING r.seq
    ) SELECT coalesce(array_agg(seq), '{}') INTO part FROM here;
    gone := gone || part;
    part := ARRAY(SELECT r.seq FROM outbox_runs r WHERE r.seq = ANY (asked) AND r.state = 'handed over'
                  FOR UPDATE SKIP LOCKED);
    DELETE FROM outbox_runs r WHERE r.seq = ANY (part);
    owners := owners || part;
    WITH here AS (
      DELETE FROM outbox_leases l WHERE l.ctid = ANY (ARRAY(
        SELECT l.ctid FROM outbox_leases l
        WHERE l.begun_at IS NULL AND l.seqs && asked
          AND (l.locked_until <= now() OR EXISTS (SELECT FROM outbox_trouble t WHERE t.seq = l.seqs[1] AND t.attempts > 0))
        FOR UPDATE OF l SKIP LOCKED)) RETURNING l.seqs[1] AS seq
    ) SELECT coalesce(array_agg(seq), '{}') INTO part FROM here;
    owners := owners || part;
  END IF;
  part := ARRAY(SELECT d.seq FROM outbox_dead d WHERE d.seq = ANY (asked) AND d.dead_at <= dead_by
                FOR UPDATE SKIP LOCKED);
  DELETE FROM outbox_dead d WHERE d.seq = ANY (part);
  gone := gone || owners || part;

  PERFORM outbox_free(m.destination, m.key) FROM outbox_messages m WHERE m.seq = ANY (owners) AND m.key IS NOT NULL;
  -- The next take looks at the keys that stood behind a dead letter, and at those that waited for the time of their first message.
  -- This waits only for takes and other acts: of two applications that take messages of a key back, one at most takes its first.
  UPDATE outbox_keys k SET due = '-infinity'
  FROM (SELECT m.destination, m.key, min(m.seq) AS first, bool_or(m.seq = ANY (part)) AS was_dead FROM outbox_messages m
        WHERE m.seq = ANY (gone) AND m.key IS NOT NULL GROUP BY m.destination, m.key) AS m
  WHERE k.destination = m.destination AND k.key = m.key AND k.token IS NULL
    AND (m.was_dead OR k.due > clock_timestamp() AND k.due < 'infinity' AND NOT EXISTS (
      SELECT FROM outbox_held h WHERE h.destination = m.destination AND h.key = m.key AND h.seq < m.first));

  IF NOT kept THEN
    DELETE FROM outbox_trouble t WHERE t.seq = ANY (gone);
    RETURN QUERY DELETE FROM outbox_messages m WHERE m.seq = ANY (gone) RETURNING m.id;
    RETURN;
  END IF;
  INSERT INTO outbox_journal (first, state, count, destination, seqs)
  SELECT min(m.seq), 'discarded', count(*), m.destination, range_agg(int8range(m.seq, m.seq, '[]'))
  FROM outbox_messages m WHERE m.seq = ANY (gone) GROUP BY m.destination, m.seq >> 16;
  INSERT INTO outbox_trouble AS t (seq, code, error, history)
  SELECT s, coalesce(as_code, 'discarded'), as_error, outbox_noted('[]', note || jsonb_build_object('at', clock_timestamp()))
  FROM unnest(gone) AS s ORDER BY s
  ON CONFLICT (seq) DO UPDATE SET code = coalesce(as_code, t.code, excluded.code), error = coalesce(t.error, excluded.error),
                                  history = outbox_noted(t.history, excluded.history -> 0);
  RETURN QUERY SELECT m.id FROM outbox_messages m WHERE m.seq = ANY (gone);
END
$$;
