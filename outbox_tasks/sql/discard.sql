-- Takes messages out that nobody wants any more. Part of schema.sql.

CREATE FUNCTION outbox_discard(
  ids uuid[], waiting boolean, dead_by timestamptz, note jsonb, as_code text, as_error text, kept boolean DEFAULT true
) RETURNS SETOF uuid LANGUAGE plpgsql SET search_path FROM CURRENT SET plan_cache_mode = force_custom_plan AS $$
-- Takes messages with these ids: `waiting` ones, which are not on their way, and those that were dead by `dead_by` (null:
-- none). They go to the journal; if they are not to be `kept`, they are deleted. Returns the ids of what it took.
--
-- What somebody else takes at this moment is skipped, not waited for; only a claim that looks at a key is. A message that
-- waits for Celery's retry can be taken until it is begun; a supervised task until it runs.
-- as_code: null: the last error stays, if there is one. as_error: if there was no error.
DECLARE
  asked CONSTANT bigint[] := ARRAY(SELECT m.seq FROM outbox_messages m WHERE m.id = ANY (ids) ORDER BY m.seq);
  these bigint[];
  gone bigint[] := '{}';
  lease record;
BEGIN
  IF waiting THEN
    these := ARRAY(SELECT w.seq FROM outbox_waiting w WHERE w.seq = ANY (asked) FOR NO KEY UPDATE SKIP LOCKED);
    DELETE FROM outbox_waiting w WHERE w.seq = ANY (these);
    gone := gone || these;
    WITH here AS (
      DELETE FROM outbox_held h WHERE h.ctid = ANY (ARRAY(
        SELECT h.ctid FROM outbox_messages m
        JOIN outbox_held h ON h.destination = m.destination AND h.key = m.key AND h.seq = m.seq
        WHERE m.seq = ANY (asked) FOR UPDATE OF h SKIP LOCKED)) RETURNING h.seq
    ) SELECT array_agg(seq) INTO these FROM here;
    gone := gone || these;
    WITH here AS (
      DELETE FROM outbox_ready r WHERE r.ctid = ANY (ARRAY(
        SELECT r.ctid FROM outbox_ready r
        WHERE r.seq BETWEEN asked[1] AND asked[cardinality(asked)]  -- a plan that knows both reads little by the BRIN index
          AND r.seq IN (SELECT unnest(asked)) FOR UPDATE OF r SKIP LOCKED)) RETURNING r.seq
    ) SELECT array_agg(seq) INTO these FROM here;
    gone := gone || these;
    these := ARRAY(SELECT r.seq FROM outbox_runs r WHERE r.seq = ANY (asked) AND r.state = 'handed over'
                   FOR NO KEY UPDATE SKIP LOCKED);
    DELETE FROM outbox_runs r WHERE r.seq = ANY (these);
    gone := gone || these;
    FOR lease IN
      SELECT l.token, l.seqs FROM outbox_leases l
      WHERE l.begun_at IS NULL AND (l.locked_until <= now() OR cardinality(l.seqs) = 1) AND l.seqs && asked
        AND (l.locked_until <= now()
             OR EXISTS (SELECT FROM outbox_trouble t WHERE t.seq = l.seqs[1] AND t.attempts > 0))
      FOR NO KEY UPDATE SKIP LOCKED
    LOOP
      these := ARRAY(SELECT s FROM unnest(lease.seqs) WITH ORDINALITY AS u(s, place) WHERE s <> ALL (asked) ORDER BY place);
      IF these = '{}' THEN
        DELETE FROM outbox_leases l WHERE l.token = lease.token;
      ELSE
        UPDATE outbox_leases l SET seqs = these WHERE l.token = lease.token;
      END IF;
      gone := gone || ARRAY(SELECT unnest(lease.seqs) INTERSECT SELECT unnest(asked));
    END LOOP;
  END IF;
  these := ARRAY(SELECT d.seq FROM outbox_dead d WHERE d.seq = ANY (asked) AND d.dead_at <= dead_by
                 FOR NO KEY UPDATE SKIP LOCKED);
  DELETE FROM outbox_dead d WHERE d.seq = ANY (these);
  gone := gone || these;

  PERFORM outbox_free(m.destination, array_agg(m.key))
  FROM outbox_messages m WHERE m.seq = ANY (gone) AND m.key IS NOT NULL GROUP BY m.destination;

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
