-- What writers say is checked for more: a key has characters, and a time is one that everybody can read. An id of the
-- writer's own leaves a mark, in the inbox of a consumer without a name: of a copy that was written and delivered since
-- a transaction took its snapshot, with REPEATABLE READ and SERIALIZABLE, nothing else could be seen there. PostgreSQL
-- then raises a serialization failure, and the transaction that is run again finds the copy.
CREATE OR REPLACE FUNCTION :schema.outbox_publish(
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

-- One mark for each key that a transaction writes to, not for each message: many messages of a few keys hold up no others.
CREATE OR REPLACE FUNCTION :schema.outbox_keep_order() RETURNS trigger LANGUAGE plpgsql AS $$
-- A transaction that writes messages with a key leaves a mark, to be seen in pg_locks until it ends: the key's class, and
-- the last number that was given out before its first one. What has a higher number is not claimed meanwhile, or it
-- could overtake what is not yet committed. The locks are shared ones: writers never wait for each other, in whatever
-- order they write. Past so many keys one mark stands for all keys: the table of locks has its limits.
DECLARE
  noted text := current_setting('outbox.floor', true);  -- the number, and the classes that have a mark
  floor bigint;
  class integer;
BEGIN
  IF coalesce(noted, '') = '' THEN
    SELECT last_value - 1 + is_called::integer || ' ' INTO noted FROM :schema.outbox_messages_seq_seq;
  END IF;
  IF right(noted, 4) <> ' all' THEN
    class := :schema.outbox_key_class(NEW.destination, NEW.key);
    IF position(' ' || class || ' ' IN noted) = 0 THEN
      floor := split_part(noted, ' ', 1);
      IF cardinality(string_to_array(noted, ' ')) < 34 THEN
        PERFORM pg_advisory_xact_lock_shared(class, (floor & 2147483647)::integer);
        noted := noted || class || ' ';
      ELSE
        PERFORM pg_advisory_xact_lock_shared(:schema.outbox_all_keys(), (floor & 2147483647)::integer);
        noted := floor || ' all';
      END IF;
      PERFORM set_config('outbox.floor', noted, true);
    END IF;
  END IF;
  NEW.seq := nextval(':schema.outbox_messages_seq_seq');
  RETURN NEW;
END
$$;

CREATE OR REPLACE FUNCTION :schema.outbox_archive_make_day(day timestamptz) RETURNS boolean LANGUAGE plpgsql AS $$
-- Makes the partition of a day (UTC), which begins at this time; false: there is one, or the default partition has
-- begun to fill with the day, which then stays there whole, or somebody is reading that, and would have to be waited for;
-- or a partition that is not ours has some of the day.
-- ATTACH, unlike CREATE TABLE … PARTITION OF, lets readers and writers of the parent go on.
DECLARE
  name text := 'outbox_archive_' || to_char(day AT TIME ZONE 'UTC', 'YYYYMMDD');
  -- In UTC, and in ISO's style: as text of the session's own style and zone it may mean another time, or none.
  style text := 'YYYY-MM-DD HH24:MI:SS"+00"';
BEGIN
  IF to_regclass(format('%I.%I', :schema_literal, name)) IS NOT NULL THEN
    RETURN false;
  END IF;
  LOCK TABLE ONLY :schema.outbox_archive_default IN ACCESS EXCLUSIVE MODE NOWAIT;
  IF EXISTS (SELECT FROM :schema.outbox_archive_default
             WHERE finished_at >= day AND finished_at < day + interval '24 hours') THEN
    RETURN false;
  END IF;
  EXECUTE format('CREATE TABLE %I.%I (LIKE :schema.outbox_archive INCLUDING DEFAULTS INCLUDING CONSTRAINTS)',
                 :schema_literal, name);
  EXECUTE format('ALTER TABLE :schema.outbox_archive ATTACH PARTITION %I.%I FOR VALUES FROM (%L) TO (%L)',
                 :schema_literal, name, to_char(day AT TIME ZONE 'UTC', style),
                 to_char((day + interval '24 hours') AT TIME ZONE 'UTC', style));
  RETURN true;
EXCEPTION WHEN lock_not_available OR invalid_object_definition THEN
  RETURN false;
END
$$;

CREATE OR REPLACE FUNCTION :schema.outbox_archive_renew_default() RETURNS boolean LANGUAGE plpgsql AS $$
-- Puts an empty default partition in the place of one whose rows are to go to partitions of their days, or that has so
-- many that no partition can be attached any more: for each of them PostgreSQL would read it whole, and hold it meanwhile.
-- Its rows are in no partition then, until they are moved back. False: somebody is in the way.
DECLARE
  rest text := 'outbox_archive_rest_' || to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYYMMDDHH24MISSUS');
BEGIN
  PERFORM set_config('lock_timeout', '25ms', true);
  LOCK TABLE ONLY :schema.outbox_archive_default IN ACCESS EXCLUSIVE MODE NOWAIT;
  LOCK TABLE ONLY :schema.outbox_archive IN ACCESS EXCLUSIVE MODE;
  ALTER TABLE :schema.outbox_archive DETACH PARTITION :schema.outbox_archive_default;
  EXECUTE format('ALTER TABLE :schema.outbox_archive_default RENAME TO %I', rest);
  CREATE TABLE :schema.outbox_archive_default PARTITION OF :schema.outbox_archive DEFAULT;
  -- Today's at once: the next settle would begin to fill the default one with today again.
  PERFORM :schema.outbox_archive_make_day(date_trunc('day', now() AT TIME ZONE 'UTC') AT TIME ZONE 'UTC');
  RETURN true;
EXCEPTION WHEN lock_not_available THEN
  RETURN false;
END
$$;

-- Claim and begin write a version of a row each. With half of each page free the second one fits on the page of the first,
-- and needs no new entries in the indexes. Only new pages are filled so; nothing is written anew.
ALTER TABLE :schema.outbox_messages SET (fillfactor = 45);

CREATE OR REPLACE FUNCTION :schema.outbox_cancel(ids uuid[]) RETURNS SETOF uuid LANGUAGE sql AS $$
-- Takes messages back that are not on their way; returns those that it took. One that is just being claimed or begun is
-- skipped, not waited for: nobody waits here, and a worker must not wait for the transaction that this runs in. A message
-- that its writer leased, and nobody else (locked_by is null), can be taken back until it is begun.
  WITH free AS (
    SELECT m.id FROM :schema.outbox_messages m
    WHERE m.id = ANY (ids) AND m.status = 'pending' AND NOT m.begun
      AND (m.lease IS NULL OR m.locked_by IS NULL OR m.attempts > 0 OR m.locked_until <= now())
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

-- The last section: it applies to the functions as they are above.
-- Who may only insert can publish with an id, publish by SQL, and take messages back, without a right to read or delete.
-- These functions do that with the rights of their owner. They were everybody's to call, and then asked for the
-- caller's rights to the table; now whoever may insert into it may call them.
DO $$
DECLARE
  called text;
  writer text;
  owner name;
BEGIN
  FOR called, owner IN
    SELECT p.oid::regprocedure, pg_get_userbyid(p.proowner) FROM pg_proc p
    WHERE p.pronamespace = ':schema'::regnamespace
      AND (p.proname = 'outbox_publish' AND p.proargtypes[1] = 'bytea'::regtype OR p.proname = 'outbox_cancel')
  LOOP
    EXECUTE 'ALTER FUNCTION ' || called || ' SECURITY DEFINER SET search_path = pg_catalog, pg_temp';
    EXECUTE 'REVOKE EXECUTE ON FUNCTION ' || called || ' FROM PUBLIC';
    IF NOT has_table_privilege(owner, ':schema.outbox_archive', 'SELECT')
       OR NOT has_table_privilege(owner, ':schema.outbox_archive', 'INSERT') THEN
      -- Somebody has given the archive to another owner.
      EXECUTE format('GRANT SELECT, INSERT ON :schema.outbox_archive TO %I', owner);
    END IF;
    FOR writer IN
      SELECT DISTINCT CASE WHEN a.grantee = 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END
      FROM pg_class c, aclexplode(c.relacl) a
      WHERE c.oid = ':schema.outbox_messages'::regclass AND a.privilege_type = 'INSERT'
    LOOP
      EXECUTE 'GRANT EXECUTE ON FUNCTION ' || called || ' TO ' || writer;
    END LOOP;
  END LOOP;
END
$$;
