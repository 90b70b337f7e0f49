-- As it was, but that a payload has at most as many bytes as `max_bytes` of a destination may be.
CREATE OR REPLACE FUNCTION :schema.outbox_publish(
  event_type text, payload bytea, key text DEFAULT NULL, destination text DEFAULT NULL,
  headers jsonb DEFAULT '{}', deliver_at timestamptz DEFAULT NULL, id uuid DEFAULT NULL,
  content_type text DEFAULT 'application/octet-stream',
  aggregate_type text DEFAULT NULL, aggregate_id text DEFAULT NULL, priority text DEFAULT 'normal',
  latest boolean DEFAULT false
) RETURNS uuid LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
  message_id uuid := coalesce(id, :schema.outbox_uuid7());
  written integer;
  place tid;
  same boolean;
  told_apart CONSTANT text[] := ARRAY['traceparent', 'tracestate', 'eventid'];
  rank smallint := array_position(ARRAY['low', 'normal', 'high'], priority) - 2;
BEGIN
  IF coalesce(event_type, '') = '' OR length(event_type) > 255 THEN
    RAISE EXCEPTION 'outbox_publish: event_type must have 1 to 255 characters' USING ERRCODE = '22023';
  ELSIF destination IS NULL OR destination = '' THEN
    RAISE EXCEPTION 'outbox_publish: destination is missing' USING ERRCODE = '22023',
      HINT = 'Name one of the configured destinations: outbox_publish(..., destination => ''orders'')';
  ELSIF key = '' OR length(key) > 255 THEN
    RAISE EXCEPTION 'outbox_publish: key must be null or have 1 to 255 characters' USING ERRCODE = '22023';
  ELSIF payload IS NULL THEN
    RAISE EXCEPTION 'outbox_publish: payload is null' USING ERRCODE = '22004';
  ELSIF octet_length(payload) > 268435456 THEN
    RAISE EXCEPTION 'outbox_publish: the payload has % bytes, and no destination takes more than 268435456',
      octet_length(payload) USING ERRCODE = '54000',
      HINT = 'Store it elsewhere, and publish where it is. A destination takes its max_bytes, 1048576 by default.';
  ELSIF rank IS NULL THEN
    RAISE EXCEPTION 'outbox_publish: priority must be high, normal or low' USING ERRCODE = '22023';
  ELSIF deliver_at NOT BETWEEN '0001-01-02 00:00+00' AND '9999-12-30 00:00+00' THEN
    RAISE EXCEPTION 'outbox_publish: deliver_at must be a time in the years 1 to 9999' USING ERRCODE = '22023';
  ELSIF jsonb_typeof(headers) IS DISTINCT FROM 'object' THEN
    RAISE EXCEPTION 'outbox_publish: headers must be a JSON object' USING ERRCODE = '22023';
  ELSIF jsonb_exists(headers, 'celery-message') THEN
    RAISE EXCEPTION 'outbox_publish: the header celery-message is for stored tasks only' USING ERRCODE = '22023',
      HINT = 'Tasks are stored by outbox.delay, apply_async and capture, from Python.';
  END IF;
  IF id IS NOT NULL THEN
    INSERT INTO :schema.outbox_inbox (consumer, message_id) VALUES ('', message_id::text) ON CONFLICT DO NOTHING;
  END IF;
  LOOP
    INSERT INTO :schema.outbox_messages (id, event_type, aggregate_type, aggregate_id, destination, key, payload,
                                         content_type, headers, locked_until, priority, latest)
    VALUES (message_id, event_type, aggregate_type, aggregate_id, destination, key, payload,
            content_type, headers, coalesce(deliver_at, clock_timestamp()), rank, latest)
    ON CONFLICT ON CONSTRAINT outbox_messages_pkey DO NOTHING
    RETURNING ctid INTO place;
    GET DIAGNOSTICS written = ROW_COUNT;
    IF id IS NULL THEN
      RETURN message_id;
    END IF;
    -- The id was chosen by the caller: it may be that of a message written before. Looked up after the insert, and
    -- so with a newer snapshot, which also sees what was sent and archived in between. A snapshot that stays the same
    -- still sees the row that has left the table since: any row but the one just written is an earlier copy.
    SELECT (found.event_type, found.aggregate_type, found.aggregate_id, found.destination, found.key, found.payload,
            found.content_type, found.headers - told_apart)
           IS NOT DISTINCT FROM
           (event_type, aggregate_type, aggregate_id, destination, key, payload, content_type, headers - told_apart)
    INTO same
    FROM (SELECT a.event_type, a.aggregate_type, a.aggregate_id, a.destination, a.key, a.payload, a.content_type,
                 a.headers
          FROM :schema.outbox_archive a WHERE a.id = message_id
          UNION ALL
          SELECT m.event_type, m.aggregate_type, m.aggregate_id, m.destination, m.key, m.payload, m.content_type,
                 m.headers
          FROM :schema.outbox_messages m
          WHERE m.id = message_id AND (written = 0 OR m.ctid <> place)) AS found
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
      DELETE FROM :schema.outbox_messages AS m WHERE m.ctid = place;
    END IF;
    EXIT;
  END LOOP;
  RETURN message_id;
END
$$;

-- What was stored with a task, for statements that look at many rows: one that can't be read must not stop them.
CREATE OR REPLACE FUNCTION :schema.outbox_envelope(stored text) RETURNS jsonb LANGUAGE plpgsql IMMUTABLE STRICT AS $$
BEGIN
  RETURN replace(stored, '\u0000', '\ufffd')::jsonb;  -- a jsonb has no NUL
EXCEPTION WHEN OTHERS THEN
  RETURN '{}';
END
$$;

-- The list of what happened to a message. Whoever inserts rows may write anything there: then it begins anew.
CREATE OR REPLACE FUNCTION :schema.outbox_noted(history jsonb, entry jsonb) RETURNS jsonb LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  -- Of a long history the first entry and the last ones are kept: how it began, and what is going on.
  SELECT CASE WHEN jsonb_typeof(history) IS DISTINCT FROM 'array' THEN jsonb_build_array(entry)
              WHEN jsonb_array_length(history) < 30 THEN history || entry
              ELSE (history - 1) || entry END
$$;

-- The audit says which database role made an entry. An entry that is closed stays as it is.
ALTER TABLE :schema.outbox_audit ADD COLUMN IF NOT EXISTS role text, ADD COLUMN IF NOT EXISTS closed_at timestamptz;
ALTER TABLE :schema.outbox_audit ALTER COLUMN role SET DEFAULT current_user;
UPDATE :schema.outbox_audit SET closed_at = at
WHERE role IS NULL AND closed_at IS NULL AND NOT EXISTS (SELECT FROM :schema.outbox_acts WHERE act = seq);

CREATE OR REPLACE FUNCTION :schema.outbox_audit_keep() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
-- An open entry is completed by the role that made it. An act in the background has a token (once): any process may go on
-- with it. All else only the owner of the table can change.
BEGIN
  IF NOT (OLD.closed_at IS NULL AND (OLD.once IS NOT NULL OR OLD.role IS NOT DISTINCT FROM current_user)
          OR pg_has_role(current_user, (SELECT relowner FROM pg_class WHERE oid = TG_RELID), 'USAGE')) THEN
    RAISE EXCEPTION 'entry % of the audit is closed, or another role''s', OLD.seq USING ERRCODE = '42501';
  END IF;
  RETURN NEW;
END
$$;
CREATE OR REPLACE TRIGGER outbox_audit_keep BEFORE UPDATE ON :schema.outbox_audit
  FOR EACH ROW EXECUTE FUNCTION :schema.outbox_audit_keep();

CREATE OR REPLACE FUNCTION :schema.outbox_acts_begin() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
-- Nobody begins an act in the background with the entry of somebody else.
BEGIN
  IF NOT EXISTS (SELECT FROM :schema.outbox_audit a
                 WHERE a.seq = NEW.act AND a.closed_at IS NULL AND a.role IS NOT DISTINCT FROM current_user) THEN
    RAISE EXCEPTION 'entry % of the audit is closed, or another role''s', NEW.act USING ERRCODE = '42501';
  END IF;
  RETURN NEW;
END
$$;
CREATE OR REPLACE TRIGGER outbox_acts_begin BEFORE INSERT ON :schema.outbox_acts
  FOR EACH ROW EXECUTE FUNCTION :schema.outbox_acts_begin();
