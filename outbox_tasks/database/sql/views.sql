-- The views of an outbox. Part of schema.sql.

-- A payload as text, if it is text; else its bytes, as \x…
CREATE FUNCTION outbox_readable(payload bytea) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
  RETURN convert_from(payload, 'UTF8');
EXCEPTION WHEN OTHERS THEN
  RETURN payload::text;
END
$$;

-- The envelope that was stored with a task. One that can't be read is empty: it must not stop a statement that reads many rows.
CREATE FUNCTION outbox_envelope(stored text) RETURNS jsonb LANGUAGE plpgsql IMMUTABLE STRICT AS $$
BEGIN
  RETURN replace(stored, '\u0000', '\ufffd')::jsonb;  -- a jsonb has no NUL
EXCEPTION WHEN OTHERS THEN
  RETURN '{}';
END
$$;

-- The queue of a stored task: the one that Celery would have declared, or that the default exchange leads to. An empty
-- text: another exchange decides. Null: it was not stored as a task.
CREATE FUNCTION outbox_task_queue(headers jsonb) RETURNS text LANGUAGE sql IMMUTABLE STRICT SET search_path FROM CURRENT AS $$
  SELECT coalesce(e #>> '{declare,0,queue,name}', CASE WHEN e ->> 'exchange' = '' THEN e ->> 'routing_key' END, '')
  FROM (SELECT outbox_envelope(headers ->> 'celery-message') AS e) AS stored WHERE e IS NOT NULL
$$;

-- The numbers of messages that have this key or aggregate id, of each up to `most`, those of the first days first. The index
-- leads to few pages; those that were written in the last minutes may not be in it yet, and are all read.
CREATE FUNCTION outbox_about(said text, most integer) RETURNS SETOF bigint LANGUAGE sql STABLE
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_bitmapscan = on AS $$
  (SELECT m.seq FROM outbox_messages m WHERE m.key = said LIMIT most)
  UNION
  (SELECT m.seq FROM outbox_messages m WHERE m.aggregate_id = said LIMIT most)
$$;

-- Each message that is not yet sent or discarded, with its state, and the table that it is in. `locked_until` is when its
-- lease ends, or until when it waits. Ask for few: by `id`, or by `destination` and `place`.
CREATE VIEW outbox_at_work AS
SELECT m.id, p.seq, p.destination, m.key, m.event_type, p.place,
       CASE WHEN p.place IN ('dead', 'running', 'handed over') AND (p.place = 'dead' OR p.locked_until > now()) THEN p.place
            WHEN p.place = 'leased' AND p.locked_until > now() AND (p.begun_at IS NOT NULL OR coalesce(t.attempts, 0) = 0) THEN 'leased'
            WHEN coalesce(p.attempts, t.attempts, 0) > 0 OR p.begun_at IS NOT NULL THEN 'retrying'
            WHEN p.place = 'waiting' OR m.deliver_at IS NOT NULL AND p.place <> 'leased' AND p.locked_until > now() THEN 'scheduled'
            ELSE 'pending' END AS state,
       coalesce(p.attempts, coalesce(t.attempts, 0) + (p.begun_at IS NOT NULL)::integer) AS attempts,
       coalesce(t.spared, 0) AS spared, coalesce(t.outages, 0) AS outages, t.code AS last_error_code,
       t.error AS last_error, m.payload, m.content_type, m.headers,
       m.aggregate_type, m.aggregate_id, m.priority, m.latest, m.deliver_at, m.created_at, p.lease, p.begun_at,
       p.holder AS locked_by, p.locked_until, p.handed_at, p.dead_at, p.unheard, p.kin, t.history
FROM (
  SELECT seq, destination, 'ready' AS place, since AS locked_until, attempts::integer, NULL::uuid AS lease,
         NULL::timestamptz AS begun_at, NULL::text AS holder, NULL::timestamptz AS handed_at,
         NULL::timestamptz AS dead_at, NULL::integer AS unheard, NULL::text AS kin
  FROM outbox_ready
  UNION ALL
  SELECT seq, destination, 'waiting', due, attempts::integer, NULL, NULL, NULL, NULL, NULL, NULL, NULL FROM outbox_waiting
  UNION ALL
  SELECT seq, destination, 'held', since, attempts::integer, NULL, NULL, NULL, NULL, NULL, NULL, NULL FROM outbox_held
  UNION ALL
  SELECT s, destination, 'leased', locked_until, NULL, token, begun_at, holder, NULL, NULL, NULL, NULL
  FROM outbox_leases CROSS JOIN LATERAL unnest(seqs) AS s
  UNION ALL
  SELECT seq, destination, state, locked_until, attempts::integer, token, NULL, holder, handed_at, NULL, unheard::integer, NULL
  FROM outbox_runs
  UNION ALL
  SELECT seq, destination, 'dead', dead_at, NULL, NULL, NULL, NULL, NULL, dead_at, NULL, kin FROM outbox_dead
) AS p
LEFT JOIN outbox_messages m ON m.seq = p.seq
LEFT JOIN outbox_trouble t ON t.seq = p.seq;

-- What was sent or discarded. The numbers of a row lie close together (see deliver/settle.sql), so a plan can begin at
-- either side: at the journal by its time, or at a message by its id.
CREATE VIEW outbox_archive AS
SELECT m.seq, m.id, m.event_type, m.aggregate_type, m.aggregate_id, m.destination, m.key, m.payload, m.content_type,
       m.headers, coalesce(t.attempts, 0) + (j.state = 'sent')::integer AS attempts, t.code AS last_error_code,
       t.error AS last_error, m.created_at, j.holder AS locked_by, t.history, j.state, j.at AS finished_at
FROM outbox_journal j
JOIN outbox_messages m ON j.seqs @> m.seq AND m.seq >= j.first AND m.seq < upper(j.seqs)
LEFT JOIN outbox_trouble t ON t.seq = m.seq;

-- Each message once.
CREATE VIEW outbox_all AS
SELECT id, seq, destination, key, event_type, state, attempts, last_error_code, last_error,
       outbox_readable(payload) AS payload, content_type, coalesce(headers, '{}') AS headers, aggregate_type, aggregate_id,
       locked_by, created_at, locked_until, dead_at, NULL::timestamptz AS finished_at, history, handed_at
FROM outbox_at_work
UNION ALL
SELECT id, seq, destination, key, event_type, state, attempts, last_error_code, last_error,
       outbox_readable(payload), content_type, coalesce(headers, '{}'), aggregate_type, aggregate_id,
       locked_by, created_at, NULL, NULL, finished_at, history, NULL
FROM outbox_archive;
