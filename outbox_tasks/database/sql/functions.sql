-- The functions that others call in SQL: applications outbox_publish and outbox_cancel, autoscalers outbox_backlog. Part of
-- schema.sql. They have the rights of their owner: a role that may call them needs no right on a table.

CREATE FUNCTION outbox_publish(
  event_type text, payload bytea, key text DEFAULT NULL, destination text DEFAULT NULL,
  headers jsonb DEFAULT '{}', deliver_at timestamptz DEFAULT NULL, id uuid DEFAULT NULL,
  content_type text DEFAULT 'application/octet-stream',
  aggregate_type text DEFAULT NULL, aggregate_id text DEFAULT NULL, priority text DEFAULT 'normal',
  latest boolean DEFAULT false
) RETURNS uuid LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
-- What is too long, the table refuses: see schema.sql.
#variable_conflict use_variable
DECLARE
  message_id CONSTANT uuid := coalesce(id, outbox_uuid7());
  same boolean;
  told_apart CONSTANT text[] := ARRAY['traceparent', 'tracestate', 'eventid'];
  rank CONSTANT smallint := array_position(ARRAY['low', 'normal', 'high'], priority) - 2;
BEGIN
  IF coalesce(event_type, '') = '' THEN
    RAISE EXCEPTION 'outbox_publish: event_type is missing' USING ERRCODE = '22023';
  ELSIF coalesce(destination, '') = '' THEN
    RAISE EXCEPTION 'outbox_publish: destination is missing' USING ERRCODE = '22023',
      HINT = 'Name one of the configured destinations: outbox_publish(..., destination => ''orders'')';
  ELSIF payload IS NULL THEN
    RAISE EXCEPTION 'outbox_publish: payload is null' USING ERRCODE = '22004';
  ELSIF rank IS NULL THEN
    RAISE EXCEPTION 'outbox_publish: priority must be high, normal or low' USING ERRCODE = '22023';
  ELSIF jsonb_typeof(headers) IS DISTINCT FROM 'object' THEN
    RAISE EXCEPTION 'outbox_publish: headers must be a JSON object' USING ERRCODE = '22023';
  ELSIF octet_length(headers::text) > 65536 THEN
    RAISE EXCEPTION 'outbox_publish: the headers have % bytes as JSON, and may have 65536', octet_length(headers::text)
      USING ERRCODE = '54000', HINT = 'What is long belongs into the payload.';
  ELSIF jsonb_exists(headers, 'celery-message') THEN
    RAISE EXCEPTION 'outbox_publish: the header celery-message is for stored tasks only' USING ERRCODE = '22023',
      HINT = 'Tasks are stored by outbox.delay, apply_async and capture, from Python.';
  END IF;
  IF id IS NOT NULL THEN
    -- No index of messages is unique over all days, but that of the inbox is: there a consumer without a name has the ids that
    -- writers chose. If another transaction is writing the same id, this waits for its end. If this transaction can't see what was
    -- committed since it began (REPEATABLE READ), PostgreSQL raises a serialization failure here.
    INSERT INTO outbox_inbox (consumer, message_id) VALUES ('', message_id::text)
    ON CONFLICT ON CONSTRAINT outbox_inbox_pkey DO UPDATE SET received_at = excluded.received_at;
    SELECT (m.event_type, m.aggregate_type, m.aggregate_id, m.destination, m.key, m.payload, m.content_type,
            coalesce(m.headers, '{}') - told_apart)
           IS NOT DISTINCT FROM
           (event_type, aggregate_type, aggregate_id, destination, key, payload, content_type, headers - told_apart)
    INTO same FROM outbox_messages m WHERE m.id = message_id LIMIT 1;
    IF same THEN
      RETURN message_id;
    ELSIF FOUND THEN
      RAISE EXCEPTION 'outbox_publish: id % belongs to a message with other content', message_id
        USING ERRCODE = '23505', HINT = 'A repeated call must say the same; a new message needs an id of its own.';
    END IF;
  END IF;
  PERFORM outbox_write_one(message_id, event_type, destination, payload, content_type, headers, key,
                           aggregate_type, aggregate_id, rank, latest, deliver_at, NULL);
  RETURN message_id;
END
$$;

CREATE FUNCTION outbox_publish(
  event_type text, payload text, key text DEFAULT NULL, destination text DEFAULT NULL,
  headers jsonb DEFAULT '{}', deliver_at timestamptz DEFAULT NULL, id uuid DEFAULT NULL,
  content_type text DEFAULT 'application/json',
  aggregate_type text DEFAULT NULL, aggregate_id text DEFAULT NULL, priority text DEFAULT 'normal',
  latest boolean DEFAULT false
) RETURNS uuid LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
  IF content_type = 'application/json' THEN
    PERFORM payload::json;  -- what is not JSON fails here, at the write
  END IF;
  RETURN outbox_publish(event_type, convert_to(payload, 'UTF8'), key, destination, headers, deliver_at,
                        id, content_type, aggregate_type, aggregate_id, priority, latest);
END
$$;

CREATE FUNCTION outbox_publish(
  event_type text, payload jsonb, key text DEFAULT NULL, destination text DEFAULT NULL,
  headers jsonb DEFAULT '{}', deliver_at timestamptz DEFAULT NULL, id uuid DEFAULT NULL,
  content_type text DEFAULT 'application/json',
  aggregate_type text DEFAULT NULL, aggregate_id text DEFAULT NULL, priority text DEFAULT 'normal',
  latest boolean DEFAULT false
) RETURNS uuid LANGUAGE sql SET search_path FROM CURRENT AS $$
  SELECT outbox_publish(event_type, convert_to(payload::text, 'UTF8'), key, destination, headers, deliver_at,
                        id, content_type, aggregate_type, aggregate_id, priority, latest)
$$;

CREATE FUNCTION outbox_publish(
  event_type text, payload json, key text DEFAULT NULL, destination text DEFAULT NULL,
  headers jsonb DEFAULT '{}', deliver_at timestamptz DEFAULT NULL, id uuid DEFAULT NULL,
  content_type text DEFAULT 'application/json',
  aggregate_type text DEFAULT NULL, aggregate_id text DEFAULT NULL, priority text DEFAULT 'normal',
  latest boolean DEFAULT false
) RETURNS uuid LANGUAGE sql SET search_path FROM CURRENT AS $$
  SELECT outbox_publish(event_type, convert_to(payload::text, 'UTF8'), key, destination, headers, deliver_at,
                        id, content_type, aggregate_type, aggregate_id, priority, latest)
$$;

-- Cancels messages that are not on their way, and returns their ids. A message that is just being taken is skipped, not waited for:
-- see outbox_discard.
CREATE FUNCTION outbox_cancel(ids uuid[]) RETURNS SETOF uuid LANGUAGE sql SECURITY DEFINER SET search_path FROM CURRENT AS $$
  SELECT * FROM outbox_discard(ids, true, NULL, '{"what": "cancelled"}', 'cancelled', 'it was taken back before it was delivered')
$$;

-- How many messages workers could send now: those that are due, and those that they are sending. Of one destination, or of all, but
-- of a thousand destinations at most, because a writer can name any number. Messages behind another one of their key do not count, nor
-- those of a paused destination; of a destination whose circuit is open one message counts, because one tries it. Each destination is
-- counted up to `most`, by indexes, so a backlog of millions costs no more.
CREATE FUNCTION outbox_backlog(destination text DEFAULT NULL, most integer DEFAULT 10000) RETURNS bigint
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
  WITH RECURSIVE known AS (  -- the destinations of which something is due: one probe of each index for each
    SELECT coalesce(outbox_backlog.destination, '') AS name
    UNION ALL
    SELECT least(outbox_next_destination(known.name, NULL),
                 (SELECT w.destination FROM outbox_waiting w WHERE w.destination > known.name ORDER BY w.destination LIMIT 1))
    FROM known WHERE known.name IS NOT NULL AND outbox_backlog.destination IS NULL
  ), asked AS (
    SELECT name, CASE WHEN d.opened_at IS NULL THEN outbox_backlog.most ELSE 1 END AS most
    FROM ((SELECT name FROM known LIMIT 1001) UNION SELECT l.destination FROM outbox_leases l) AS n
    LEFT JOIN outbox_destinations d USING (name)
    WHERE name = coalesce(outbox_backlog.destination, name) AND d.paused_at IS NULL
  ), leased AS (
    SELECT l.destination AS name, sum(cardinality(l.seqs)) AS count FROM outbox_leases l GROUP BY l.destination
  )
  SELECT coalesce(sum(least(asked.most, coalesce(leased.count, 0) + (SELECT count(*) FROM (
    SELECT FROM outbox_ready r WHERE r.destination = asked.name AND r.key IS NULL AND NOT r.alone
    UNION ALL
    SELECT FROM outbox_ready r WHERE r.destination = asked.name AND r.alone
    UNION ALL
    SELECT FROM outbox_ready r WHERE r.destination = asked.name AND r.key IS NOT NULL AND r.since <= now()
    UNION ALL
    SELECT FROM outbox_keys k WHERE k.destination = asked.name AND k.token IS NULL AND k.due <= now()
    UNION ALL
    SELECT FROM outbox_waiting w WHERE w.destination = asked.name AND w.due <= now()
    LIMIT asked.most) AS due))), 0)::bigint
  FROM asked LEFT JOIN leased USING (name)
$$;

REVOKE EXECUTE ON FUNCTION outbox_publish(text, bytea, text, text, jsonb, timestamptz, uuid, text, text, text, text, boolean),
                           outbox_cancel(uuid[]), outbox_backlog(text, integer) FROM PUBLIC;
