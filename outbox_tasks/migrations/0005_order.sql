-- The order of messages that share a key. In each of them `seq` says which comes first; the first that is not yet
-- delivered is the key's head, and only it, and what follows it without a gap, is ever leased.
ALTER TABLE :schema.outbox_messages
  ADD COLUMN latest boolean NOT NULL DEFAULT false,
  ADD COLUMN priority smallint NOT NULL DEFAULT 0 CHECK (priority BETWEEN -1 AND 1);

-- Dead ones too: with on_dead = 'block' they hold up their key.
CREATE INDEX outbox_messages_keys ON :schema.outbox_messages (destination, key, seq) WHERE key IS NOT NULL;

CREATE INDEX outbox_messages_dead ON :schema.outbox_messages (destination, dead_at) WHERE status = 'dead';

DROP INDEX :schema.outbox_messages_due;
CREATE INDEX outbox_messages_due ON :schema.outbox_messages (destination, priority, locked_until)
  WHERE status = 'pending' AND key IS NULL;

CREATE FUNCTION :schema.outbox_key_class(destination text, key text) RETURNS integer
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
  -- Negative: one of a key. outbox_all_keys() is the positive one for all of them.
  SELECT hashtext(:schema_literal || chr(1) || destination || chr(1) || key) | (-2147483648)
$$;

CREATE FUNCTION :schema.outbox_all_keys() RETURNS integer LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT hashtext(:schema_literal || chr(1)) & 2147483647
$$;

CREATE FUNCTION :schema.outbox_keep_order() RETURNS trigger LANGUAGE plpgsql AS $$
-- A transaction that writes messages with a key leaves a mark, to be seen in pg_locks until it ends: the key's class, and
-- the last number that was given out before its first one. What has a higher number is not claimed meanwhile, or it
-- could overtake what is not yet committed. The locks are shared ones: writers never wait for each other, in whatever
-- order they write. Past so many messages one mark stands for all keys: the table of locks has its limits.
DECLARE
  noted text := current_setting('outbox.floor', true);
  floor bigint;
  marked integer := 0;
BEGIN
  IF coalesce(noted, '') = '' THEN
    SELECT last_value - 1 + is_called::integer INTO floor FROM :schema.outbox_messages_seq_seq;
  ELSE
    floor := split_part(noted, ' ', 1);
    marked := split_part(noted, ' ', 2);
  END IF;
  IF marked < 32 THEN
    PERFORM pg_advisory_xact_lock_shared(:schema.outbox_key_class(NEW.destination, NEW.key), (floor & 2147483647)::integer);
  ELSIF marked = 32 THEN
    PERFORM pg_advisory_xact_lock_shared(:schema.outbox_all_keys(), (floor & 2147483647)::integer);
  END IF;
  IF marked <= 32 THEN
    PERFORM set_config('outbox.floor', floor || ' ' || marked + 1, true);
  END IF;
  NEW.seq := nextval(':schema.outbox_messages_seq_seq');
  RETURN NEW;
END
$$;

CREATE TRIGGER outbox_keep_order BEFORE INSERT ON :schema.outbox_messages
  FOR EACH ROW WHEN (NEW.key IS NOT NULL) EXECUTE FUNCTION :schema.outbox_keep_order();

DROP FUNCTION :schema.outbox_publish(text, jsonb, text, text, jsonb, timestamptz, uuid, text, text, text);
DROP FUNCTION :schema.outbox_publish(text, text, text, text, jsonb, timestamptz, uuid, text, text, text);
DROP FUNCTION :schema.outbox_publish(text, bytea, text, text, jsonb, timestamptz, uuid, text, text, text);

CREATE FUNCTION :schema.outbox_publish(
  event_type text, payload bytea, key text DEFAULT NULL, destination text DEFAULT NULL,
  headers jsonb DEFAULT '{}', deliver_at timestamptz DEFAULT NULL, id uuid DEFAULT NULL,
  content_type text DEFAULT 'application/octet-stream',
  aggregate_type text DEFAULT NULL, aggregate_id text DEFAULT NULL, priority text DEFAULT 'normal',
  latest boolean DEFAULT false
) RETURNS uuid LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
  message_id uuid := coalesce(id, :schema.outbox_uuid7());
  written integer;
  archived boolean;
  same boolean;
  rank smallint := array_position(ARRAY['low', 'normal', 'high'], priority) - 2;
BEGIN
  IF coalesce(event_type, '') = '' OR length(event_type) > 255 THEN
    RAISE EXCEPTION 'outbox_publish: event_type must have 1 to 255 characters' USING ERRCODE = '22023';
  ELSIF destination IS NULL OR destination = '' THEN
    RAISE EXCEPTION 'outbox_publish: destination is missing' USING ERRCODE = '22023',
      HINT = 'Name one of the configured destinations: outbox_publish(..., destination => ''orders'')';
  ELSIF length(key) > 255 THEN
    RAISE EXCEPTION 'outbox_publish: key must have at most 255 characters' USING ERRCODE = '22023';
  ELSIF payload IS NULL THEN
    RAISE EXCEPTION 'outbox_publish: payload is null' USING ERRCODE = '22004';
  ELSIF rank IS NULL THEN
    RAISE EXCEPTION 'outbox_publish: priority must be high, normal or low' USING ERRCODE = '22023';
  ELSIF jsonb_typeof(headers) IS DISTINCT FROM 'object' THEN
    RAISE EXCEPTION 'outbox_publish: headers must be a JSON object' USING ERRCODE = '22023';
  END IF;
  LOOP
    INSERT INTO :schema.outbox_messages (id, event_type, aggregate_type, aggregate_id, destination, key, payload,
                                         content_type, headers, locked_until, priority, latest)
    VALUES (message_id, event_type, aggregate_type, aggregate_id, destination, key, payload,
            content_type, headers, coalesce(deliver_at, clock_timestamp()), rank, latest)
    ON CONFLICT ON CONSTRAINT outbox_messages_pkey DO NOTHING;
    GET DIAGNOSTICS written = ROW_COUNT;
    IF id IS NULL THEN
      RETURN message_id;
    END IF;
    -- The id was chosen by the caller: it may be that of a message written before. Looked up after the insert, and
    -- so with a newer snapshot, which also sees what was sent and archived in between.
    SELECT found.archived,
           (found.event_type, found.aggregate_type, found.aggregate_id, found.destination, found.key, found.payload,
            found.content_type, found.headers)
           IS NOT DISTINCT FROM
           (event_type, aggregate_type, aggregate_id, destination, key, payload, content_type, headers)
    INTO archived, same
    FROM (SELECT true AS archived, a.event_type, a.aggregate_type, a.aggregate_id, a.destination, a.key, a.payload,
                 a.content_type, a.headers
          FROM :schema.outbox_archive a WHERE a.id = message_id
          UNION ALL
          SELECT false, m.event_type, m.aggregate_type, m.aggregate_id, m.destination, m.key, m.payload,
                 m.content_type, m.headers
          FROM :schema.outbox_messages m WHERE m.id = message_id AND written = 0) AS found
    LIMIT 1;
    IF NOT FOUND THEN
      -- Nothing but what was just written; or the earlier one has gone meanwhile: once more.
      EXIT WHEN written = 1;
      CONTINUE;
    END IF;
    IF NOT same THEN
      RAISE EXCEPTION 'outbox_publish: id % belongs to a message with other content', message_id
        USING ERRCODE = '23505', HINT = 'A repeated call must say the same; a new message needs an id of its own.';
    END IF;
    IF written = 1 THEN
      DELETE FROM :schema.outbox_messages AS m WHERE m.id = message_id;
    END IF;
    EXIT;
  END LOOP;
  RETURN message_id;
END
$$;

CREATE FUNCTION :schema.outbox_publish(
  event_type text, payload text, key text DEFAULT NULL, destination text DEFAULT NULL,
  headers jsonb DEFAULT '{}', deliver_at timestamptz DEFAULT NULL, id uuid DEFAULT NULL,
  content_type text DEFAULT 'application/json',
  aggregate_type text DEFAULT NULL, aggregate_id text DEFAULT NULL, priority text DEFAULT 'normal',
  latest boolean DEFAULT false
) RETURNS uuid LANGUAGE plpgsql AS $$
BEGIN
  IF content_type = 'application/json' THEN
    PERFORM payload::json;  -- what is not JSON fails here, at the write
  END IF;
  RETURN :schema.outbox_publish(event_type, convert_to(payload, 'UTF8'), key, destination, headers, deliver_at,
                                id, content_type, aggregate_type, aggregate_id, priority, latest);
END
$$;

CREATE FUNCTION :schema.outbox_publish(
  event_type text, payload jsonb, key text DEFAULT NULL, destination text DEFAULT NULL,
  headers jsonb DEFAULT '{}', deliver_at timestamptz DEFAULT NULL, id uuid DEFAULT NULL,
  content_type text DEFAULT 'application/json',
  aggregate_type text DEFAULT NULL, aggregate_id text DEFAULT NULL, priority text DEFAULT 'normal',
  latest boolean DEFAULT false
) RETURNS uuid LANGUAGE sql AS $$
  SELECT :schema.outbox_publish(event_type, convert_to(payload::text, 'UTF8'), key, destination, headers, deliver_at,
                                id, content_type, aggregate_type, aggregate_id, priority, latest)
$$;

CREATE FUNCTION :schema.outbox_cancel(ids uuid[]) RETURNS SETOF uuid LANGUAGE sql AS $$
-- Takes messages back that are not on their way; returns those that it took. One that is just being claimed or begun is
-- skipped, not waited for: nobody waits here, and a worker must not wait for the transaction that this runs in.
  WITH free AS (
    SELECT m.id FROM :schema.outbox_messages m
    WHERE m.id = ANY (ids) AND m.status = 'pending' AND NOT m.begun
      AND (m.lease IS NULL OR m.attempts > 0 OR m.locked_until <= now())
    ORDER BY m.id FOR UPDATE SKIP LOCKED
  ), gone AS (
    DELETE FROM :schema.outbox_messages m USING free WHERE m.id = free.id RETURNING m.*
  )
  INSERT INTO :schema.outbox_archive (seq, id, event_type, aggregate_type, aggregate_id, destination, key, payload,
                                      content_type, headers, attempts, last_error_code, last_error, created_at,
                                      locked_by, state)
  SELECT seq, id, event_type, aggregate_type, aggregate_id, destination, key, payload, content_type, headers, attempts,
         'cancelled', coalesce(last_error, 'it was taken back before it was delivered'), created_at, locked_by, 'discarded'
  FROM gone
  RETURNING id
$$;
