-- How messages are numbered and written. Part of schema.sql.

-- The next number of a message without a key.
CREATE FUNCTION outbox_number() RETURNS bigint LANGUAGE sql VOLATILE
BEGIN ATOMIC
  SELECT nextval('outbox_seq'::regclass);
END;

-- Messages that share a key are sent in the order of their numbers, and a transaction that commits late must not be overtaken. So a
-- transaction that writes messages with keys leaves marks, which pg_locks shows until it ends: for each class of keys the last number
-- that was given out before. Messages of that class with a higher number are not taken meanwhile. The locks are shared ones: writers
-- never wait for each other, in whatever order they write. A transaction with more than 32 marks gets one for all keys, because the table
-- of locks has its limits. A mark is 7 bits for this outbox, 16 for the class, and the lower 40 of the number.
CREATE FUNCTION outbox_all_keys() RETURNS bigint LANGUAGE sql IMMUTABLE
BEGIN ATOMIC
  SELECT ('outbox_seq'::regclass::oid::bigint & 127) << 16;
END;

CREATE FUNCTION outbox_key_class(destination text, key text) RETURNS bigint LANGUAGE sql IMMUTABLE
BEGIN ATOMIC
  SELECT outbox_all_keys() + 1 + abs(hashtext(destination || chr(1) || key) % 65535);
END;

-- The next number of a message with this key, and the mark of its transaction. Each step is one expression, which
-- PL/pgSQL evaluates without a query; a function that takes a lock returns an empty text.
CREATE FUNCTION outbox_ordered(destination text, key text) RETURNS bigint LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT AS $$
DECLARE
  setting CONSTANT text := 'outbox.floor' || 'outbox_seq'::regclass::oid;
  noted text := current_setting(setting, true);  -- the number, and the classes that have a mark
  floor bigint;
  class bigint;
BEGIN
  IF coalesce(noted, '') = '' THEN
    noted := coalesce(pg_sequence_last_value('outbox_seq'), 0) || ' ';  -- null: no number was given out yet
  END IF;
  IF right(noted, 4) <> ' all' THEN
    class := outbox_key_class(destination, key);
    IF position(' ' || class || ' ' IN noted) = 0 THEN
      floor := split_part(noted, ' ', 1)::bigint & 1099511627775;
      IF cardinality(string_to_array(noted, ' ')) < 34 THEN
        noted := noted || class || ' ' || pg_advisory_xact_lock_shared(class << 40 | floor)::text;
      ELSE
        noted := noted || ' all' || pg_advisory_xact_lock_shared(outbox_all_keys() << 40 | floor)::text;
      END IF;
      noted := set_config(setting, noted, true);
    END IF;
  END IF;
  RETURN nextval('outbox_seq');
END
$$;

-- The marks of open writers. Messages are numbered up to `high`; of a class of keys that has marks, only messages up to the lowest
-- `floor` of these may be taken. The number is read before the marks: a writer that leaves a mark after that gets higher numbers, so a
-- mark with a higher number than `high` does not count. A mark has 40 bits of a number: a transaction may be open over 127 turns of the
-- day.
CREATE FUNCTION outbox_open_writers(OUT high bigint, OUT classes bigint[], OUT floors bigint[]) LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT AS $$
BEGIN
  SELECT last_value - 1 + is_called::integer INTO high FROM outbox_seq;
  SELECT array_agg(mark.class), array_agg(high - ((high - mark.low) & 1099511627775)) INTO classes, floors
  FROM (SELECT classid::bigint >> 8 AS class, ((classid::bigint & 255) << 32) | objid::bigint AS low
        FROM pg_locks
        WHERE locktype = 'advisory' AND objsubid = 1 AND mode = 'ShareLock'
          AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
          AND classid::bigint >> 24 = outbox_all_keys() >> 16) AS mark
  WHERE (high - mark.low) & 1099511627775 < 549755813888;
END
$$;

-- Whether no open writer may still write a message of this key with a lower number. classes, floors: of outbox_open_writers.
CREATE FUNCTION outbox_comes_next(destination text, key text, seq bigint, classes bigint[], floors bigint[])
RETURNS boolean LANGUAGE sql STABLE SET search_path FROM CURRENT AS $$
  SELECT NOT EXISTS (
    SELECT FROM unnest(classes, floors) AS mark(class, floor)
    WHERE seq > mark.floor AND mark.class IN (outbox_all_keys(), outbox_key_class(destination, key)))
$$;

-- The functions that writers call have the rights of their owner: writers need no right on a table, and can neither read nor change
-- what others wrote. The functions also keep their plans for the session, where a driver prepares nothing.

-- Writes one message: see write/publish_one.sql. Each variable makes a transaction's first call about 2 µs slower.
CREATE FUNCTION outbox_write_one(
  id uuid, event_type text, destination text, payload bytea, content_type text, headers jsonb, key text,
  aggregate_type text, aggregate_id text, priority smallint, latest boolean, deliver_at timestamptz, delay float
) RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
#variable_conflict use_variable
DECLARE
  now CONSTANT timestamptz := clock_timestamp();
  due CONSTANT timestamptz := coalesce(deliver_at, now + delay * interval '1 second', now);
  seq CONSTANT bigint := CASE WHEN key IS NULL THEN nextval('outbox_seq') ELSE outbox_ordered(destination, key) END;
BEGIN
  INSERT INTO outbox_messages (seq, id, created_at, deliver_at, priority, latest, event_type, destination, key,
                               aggregate_type, aggregate_id, content_type, headers, payload)
  VALUES (seq, id, now, CASE WHEN due > now THEN due END, priority, latest, event_type, destination, key,
          aggregate_type, aggregate_id, content_type, headers, payload);
  IF key IS NULL AND due > now THEN
    INSERT INTO outbox_waiting (seq, due, since, destination) VALUES (seq, due, due, destination);
  ELSE
    INSERT INTO outbox_ready (seq, since, size, priority, destination, key)
    VALUES (seq, due, octet_length(payload), priority, destination, key);
  END IF;
END
$$;

-- Writes many messages: see write/publish.sql.
CREATE FUNCTION outbox_write(message json) RETURNS void LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT AS $$
DECLARE
  now CONSTANT timestamptz := clock_timestamp();
BEGIN
  WITH row AS MATERIALIZED (
    SELECT CASE WHEN r.key IS NULL THEN nextval('outbox_seq') ELSE outbox_ordered(r.destination, r.key) END AS seq,
           r.id, r.event_type, r.destination, r.key, r.aggregate_type, r.aggregate_id, r.content_type, r.headers,
           coalesce(r.latest, false) AS latest,
           CASE r.priority WHEN 'high' THEN 1 WHEN 'low' THEN -1 ELSE 0 END AS priority,
           coalesce(convert_to(r.text, 'UTF8'), decode(r.data, 'base64')) AS payload,
           coalesce(r.deliver_at, now + r.delay * interval '1 second', now) AS due
    FROM json_to_recordset(message) AS r(
           id uuid, event_type text, aggregate_type text, aggregate_id text, destination text, key text, text text,
           data text, content_type text, headers jsonb, deliver_at timestamptz, delay float, priority text,
           latest boolean)
  ), said AS (
    INSERT INTO outbox_messages (seq, id, created_at, deliver_at, priority, latest, event_type, destination, key,
                                 aggregate_type, aggregate_id, content_type, headers, payload)
    SELECT seq, id, now, CASE WHEN due > now THEN due END, priority, latest, event_type, destination, key,
           aggregate_type, aggregate_id, content_type, headers, payload
    FROM row
  ), later AS (
    INSERT INTO outbox_waiting (seq, due, since, destination)
    SELECT seq, due, due, destination
    FROM row WHERE due > now AND key IS NULL
  )
  INSERT INTO outbox_ready (seq, since, size, priority, destination, key)
  SELECT seq, due, octet_length(payload), priority, destination, key
  FROM row WHERE key IS NOT NULL OR due <= now;
END
$$;

REVOKE EXECUTE ON FUNCTION outbox_write, outbox_write_one FROM PUBLIC;
