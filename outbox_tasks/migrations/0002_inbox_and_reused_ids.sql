CREATE TABLE :schema.outbox_inbox (
  consumer    text NOT NULL,
  message_id  text NOT NULL,
  received_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (consumer, message_id)
) WITH (
  -- Rows are inserted once and deleted in batches: vacuum by count.
  autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000,
  autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 50000
);

CREATE INDEX outbox_inbox_received_at ON :schema.outbox_inbox (received_at);

CREATE OR REPLACE FUNCTION :schema.outbox_publish(
  event_type text, payload bytea, key text DEFAULT NULL, destination text DEFAULT NULL,
  headers jsonb DEFAULT '{}', deliver_at timestamptz DEFAULT NULL, id uuid DEFAULT NULL,
  content_type text DEFAULT 'application/octet-stream',
  aggregate_type text DEFAULT NULL, aggregate_id text DEFAULT NULL
) RETURNS uuid LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
  message_id uuid := coalesce(id, :schema.outbox_uuid7());
  written integer;
  archived boolean;
  same boolean;
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
  ELSIF jsonb_typeof(headers) IS DISTINCT FROM 'object' THEN
    RAISE EXCEPTION 'outbox_publish: headers must be a JSON object' USING ERRCODE = '22023';
  END IF;
  LOOP
    INSERT INTO :schema.outbox_messages (id, event_type, aggregate_type, aggregate_id, destination, key, payload,
                                         content_type, headers, locked_until)
    VALUES (message_id, event_type, aggregate_type, aggregate_id, destination, key, payload,
            content_type, headers, coalesce(deliver_at, clock_timestamp()))
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
