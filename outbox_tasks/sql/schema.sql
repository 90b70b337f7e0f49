-- The tables of an outbox. A row's table says what it is for:
--
--   messages   what was said: written once, never changed. A day's messages are one partition.
--   ready      what is due, or has just been written: a claim takes it from here
--   waiting    what is due later: a scheduled message, or one that failed
--   held       what is behind another message of its key
--   leases     what is in somebody's hands, one row a bundle
--   runs       supervised tasks that a broker has, or a worker runs
--   dead       dead letters
--   journal    what was settled, one row a bundle. A message was sent if the journal says so.
--   trouble    what happened to messages that did not arrive at once: attempts, errors, history
--
-- A message at work is in exactly one of: ready, waiting, held, leases, runs, dead. Then it leaves for the journal.
-- So of all messages, each is in the journal or at work: `look/books.sql` counts both sides.
--
-- Run it in psql:  psql -v schema=public -f schema.sql

-- Functions keep this path. PostgreSQL looks into pg_catalog before it, and pg_temp is the last: nobody can put a function
-- or a table of his own in the place of PostgreSQL's or ours.
SET LOCAL search_path = :schema, pg_temp;

CREATE FUNCTION outbox_uuid7() RETURNS uuid LANGUAGE sql VOLATILE PARALLEL SAFE AS $$
  -- RFC 9562: milliseconds since 1970 over the first 48 bits of a random UUID, then version 7 (0111; was 0100).
  SELECT encode(
    set_bit(set_bit(
      overlay(uuid_send(gen_random_uuid())
              PLACING substring(int8send((extract(epoch FROM clock_timestamp()) * 1000)::bigint) FROM 3) FROM 1 FOR 6),
      52, 1), 53, 1), 'hex')::uuid
$$;

-- Messages are numbered. A day has 2^32 numbers, and a partition of its own: the turn of the day moves the sequence to
-- the first number of the next partition. So writers need no clock, and never lack a partition.
CREATE SEQUENCE outbox_seq;

-- The checks are for whoever writes. A claim, an index or a page reads what they bound, of many rows at a time.
CREATE TABLE outbox_messages (
  seq            bigint PRIMARY KEY,
  id             uuid NOT NULL DEFAULT outbox_uuid7(),
  created_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
  deliver_at     timestamptz CHECK (deliver_at < '9999-12-31 00:00+00'),  -- if that was later than it was written
  priority       smallint NOT NULL DEFAULT 0 CHECK (priority BETWEEN -1 AND 1),
  latest         boolean NOT NULL DEFAULT false,  -- a newer message of its key replaces it once it has failed
  event_type     text NOT NULL CHECK (event_type <> '' AND length(event_type) <= 255),
  destination    text NOT NULL CHECK (destination <> '' AND length(destination) <= 255),  -- an index has room for it and a key
  key            text CHECK (key <> '' AND length(key) <= 255),
  aggregate_type text CHECK (length(aggregate_type) <= 1000),
  aggregate_id   text CHECK (length(aggregate_id) <= 1000),
  content_type   text NOT NULL DEFAULT 'application/json' CHECK (length(content_type) <= 1000),
  headers        jsonb CHECK (octet_length(headers::text) <= 66560),  -- 64 KiB, and what a replay adds
  payload        bytea NOT NULL CHECK (octet_length(payload) <= 268435456)
) PARTITION BY RANGE (seq);

CREATE INDEX outbox_messages_id ON outbox_messages (id);

CREATE TABLE outbox_messages_0 PARTITION OF outbox_messages FOR VALUES FROM (0) TO (4294967296);

-- Narrow rows: taking one out costs little. A claim reads a lane from where it was before (see claim/take.sql), so the
-- rows that are gone, and that an old snapshot keeps, are not read again.
CREATE TABLE outbox_ready (
  seq         bigint NOT NULL,
  xid         xid8 NOT NULL DEFAULT pg_current_xact_id(),
  since       timestamptz NOT NULL DEFAULT clock_timestamp(),  -- since when it is due
  size        integer NOT NULL,                                -- bytes of the payload
  attempts    smallint NOT NULL DEFAULT 0,
  priority    smallint NOT NULL DEFAULT 0,
  alone       boolean NOT NULL DEFAULT false,  -- it may have failed its last bundle: it travels alone
  latest      boolean NOT NULL DEFAULT false,
  destination text NOT NULL,
  key         text
) WITH (
  -- Each row is inserted and deleted: vacuum by count, not by a share.
  autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000,
  autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 100000,
  autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 50000
);
CREATE INDEX outbox_ready_lanes ON outbox_ready (destination, priority, xid, seq) WHERE key IS NULL;
CREATE INDEX outbox_ready_keys ON outbox_ready (destination, seq) WHERE key IS NOT NULL;
-- Costs writers next to nothing, and finds a single message.
CREATE INDEX outbox_ready_seq ON outbox_ready USING brin (seq) WITH (pages_per_range = 16, autosummarize = on);

CREATE TABLE outbox_waiting (
  seq         bigint PRIMARY KEY,
  due         timestamptz NOT NULL,
  since       timestamptz NOT NULL,
  size        integer NOT NULL,
  attempts    smallint NOT NULL DEFAULT 0,
  priority    smallint NOT NULL DEFAULT 0,
  alone       boolean NOT NULL DEFAULT false,
  latest      boolean NOT NULL DEFAULT false,
  destination text NOT NULL,
  key         text
);
CREATE INDEX outbox_waiting_due ON outbox_waiting (due);
CREATE INDEX outbox_waiting_destination ON outbox_waiting (destination, due);
CREATE INDEX outbox_waiting_keys ON outbox_waiting (destination, key) WHERE key IS NOT NULL;

CREATE TABLE outbox_held (
  destination text NOT NULL,
  key         text NOT NULL,
  seq         bigint NOT NULL,
  since       timestamptz NOT NULL,
  size        integer NOT NULL,
  attempts    smallint NOT NULL DEFAULT 0,
  priority    smallint NOT NULL DEFAULT 0,
  alone       boolean NOT NULL DEFAULT false,
  latest      boolean NOT NULL DEFAULT false,
  free        boolean NOT NULL DEFAULT false,  -- perhaps its key is free: a claim looks
  PRIMARY KEY (destination, key, seq)
);
CREATE INDEX outbox_held_free ON outbox_held (destination, seq) WHERE free;
CREATE INDEX outbox_held_seq ON outbox_held USING brin (seq) WITH (pages_per_range = 16, autosummarize = on);

-- Keys that a transaction has freed without marking what is held of them: a claim does. See outbox_free.
CREATE TABLE outbox_freed (
  destination text NOT NULL,
  key         text NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);

CREATE TABLE outbox_leases (
  token        uuid PRIMARY KEY,
  locked_until timestamptz NOT NULL,
  begun_at     timestamptz,           -- its send has begun: it holds one of the destination's slots
  destination  text NOT NULL,
  holder       text,                  -- who claimed it, or sends it
  seqs         bigint[] NOT NULL CHECK (cardinality(seqs) BETWEEN 1 AND 1000),  -- a claim takes back a bundle as a whole
  keys         text[]                 -- of its messages, if they have keys
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);
-- To compress what is gone in a moment takes longer than all else that a lease costs.
ALTER TABLE outbox_leases ALTER seqs SET STORAGE EXTERNAL, ALTER keys SET STORAGE EXTERNAL;
CREATE INDEX outbox_leases_end ON outbox_leases (locked_until);
CREATE INDEX outbox_leases_begun ON outbox_leases (destination, begun_at) WHERE begun_at IS NOT NULL;
CREATE INDEX outbox_leases_keys ON outbox_leases (destination, locked_until) WHERE keys IS NOT NULL;

CREATE TABLE outbox_runs (
  seq          bigint PRIMARY KEY,
  state        text NOT NULL CHECK (state IN ('handed over', 'running')),
  token        uuid CHECK ((token IS NOT NULL) = (state = 'running')),
  locked_until timestamptz NOT NULL,
  handed_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
  attempts     smallint NOT NULL,
  unheard      smallint NOT NULL DEFAULT 0,  -- see outbox_trouble
  id           uuid NOT NULL,
  destination  text NOT NULL,
  key          text,
  holder       text
);
CREATE INDEX outbox_runs_end ON outbox_runs (locked_until);
CREATE INDEX outbox_runs_states ON outbox_runs (destination, state, locked_until);
CREATE INDEX outbox_runs_id ON outbox_runs (id);
CREATE INDEX outbox_runs_keys ON outbox_runs (destination, key) WHERE key IS NOT NULL;

CREATE TABLE outbox_dead (
  seq         bigint PRIMARY KEY,
  dead_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
  kin         text NOT NULL,  -- dead letters that died of the same: see outbox_error_group
  destination text NOT NULL,
  key         text
);
CREATE INDEX outbox_dead_at ON outbox_dead (destination, dead_at, seq);
CREATE INDEX outbox_dead_kin ON outbox_dead (kin, dead_at, seq);
CREATE INDEX outbox_dead_keys ON outbox_dead (destination, key, seq) WHERE key IS NOT NULL;

CREATE TABLE outbox_trouble (
  seq      bigint PRIMARY KEY,
  attempts integer NOT NULL DEFAULT 0,  -- sends that failed, or whose end nobody knows; at most 30000
  spared   integer NOT NULL DEFAULT 0,  -- of these, those that don't count against max_attempts
  outages  integer NOT NULL DEFAULT 0,  -- sends in a row that met a destination out of reach
  unheard  smallint NOT NULL DEFAULT 0, -- how often in a row it was handed over, and nobody began it
  since    timestamptz,                 -- it was redriven then: from there its age counts
  code     text,
  error    text,
  history  jsonb NOT NULL DEFAULT '[]'
) WITH (fillfactor = 70);

CREATE TABLE outbox_journal (
  first  bigint NOT NULL,          -- the lowest number: it names the day
  at     timestamptz NOT NULL DEFAULT clock_timestamp(),
  state  text NOT NULL CHECK (state IN ('sent', 'discarded')),
  count  integer NOT NULL CHECK (count > 0),
  destination text NOT NULL,
  holder text,
  seqs   int8multirange NOT NULL
) PARTITION BY RANGE (first);
CREATE INDEX outbox_journal_seqs ON outbox_journal USING gist (seqs);
CREATE TABLE outbox_journal_0 PARTITION OF outbox_journal FOR VALUES FROM (0) TO (4294967296);

\ir writers.sql

CREATE FUNCTION outbox_free(target text, freed text[]) RETURNS void LANGUAGE plpgsql VOLATILE STRICT
SET search_path FROM CURRENT SET enable_seqscan = off AS $$
-- Marks a held message of each key, for a claim to look at. Whoever ends what makes a key busy calls this once that row is
-- gone: it sees what was committed by then, so also what a claim held while that row was still there. It waits for nobody:
-- if others have locked all that is held of a key, it leaves a note. So it does in REPEATABLE READ and SERIALIZABLE, where
-- it sees what its caller sees. Its plan is kept, so it must not be one for the few rows of a first call.
BEGIN
  IF current_setting('transaction_isolation') = 'read committed' THEN
    WITH head AS MATERIALIZED (
      SELECT one.key, h.at
      FROM (SELECT DISTINCT f AS key FROM unnest(freed) AS f
            WHERE (SELECT true FROM outbox_held h WHERE h.destination = target AND h.key = f LIMIT 1)) AS one
      LEFT JOIN LATERAL (SELECT h.ctid AS at FROM outbox_held h WHERE h.destination = target AND h.key = one.key
                         ORDER BY h.seq LIMIT 1 FOR UPDATE SKIP LOCKED) AS h ON true
    ), marked AS (
      UPDATE outbox_held h SET free = true WHERE h.ctid = ANY (ARRAY(SELECT at FROM head)) AND NOT h.free
    )
    INSERT INTO outbox_freed (destination, key)
    SELECT target, key FROM head WHERE at IS NULL;
  ELSE
    INSERT INTO outbox_freed (destination, key) SELECT DISTINCT target, f FROM unnest(freed) AS f WHERE f IS NOT NULL;
  END IF;
END
$$;

-- One more entry in the list of what happened to a message. Of a long one the first and the last entries are kept.
CREATE FUNCTION outbox_noted(history jsonb, entry jsonb) RETURNS jsonb LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT CASE WHEN jsonb_typeof(history) IS DISTINCT FROM 'array' THEN jsonb_build_array(jsonb_strip_nulls(entry))
              WHEN jsonb_array_length(history) < 30 THEN history || jsonb_strip_nulls(entry)
              ELSE (history - 1) || jsonb_strip_nulls(entry) END
$$;

CREATE FUNCTION outbox_error_group(destination text, event_type text, code text, error text)
RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  -- Errors that differ only in ids, numbers and what stands in quotes are one group.
  SELECT left(md5(concat_ws(E'\x1f', destination, event_type, code,
    regexp_replace(regexp_replace(regexp_replace(left(error, 500),
      '[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}', '<id>', 'g'),
      '''[^'']*''|"[^"]*"', '<text>', 'g'),
      '(0[xX])?[0-9a-fA-F]*[0-9][0-9a-fA-F]*', '<n>', 'g'))), 12)
$$;

-- One row for a destination that is or was in trouble, is paused, or has a rate; the others need none.
CREATE TABLE outbox_destinations (
  name         text PRIMARY KEY,
  failures     integer NOT NULL DEFAULT 0,  -- sends in a row that found it out of reach: see traffic/tripped.sql
  different    integer NOT NULL DEFAULT 0,  -- how many messages met their first outage in these sends
  failed_at    timestamptz,
  error_code   text,
  error        text,
  opened_at    timestamptz,      -- its circuit is open
  pause_until  timestamptz,
  probe        uuid,             -- the lease that may try whether it answers
  recovered_at timestamptz,
  paused_at    timestamptz,      -- by a person
  paused_by    text,
  paused_why   text,
  allowance    double precision, -- what may be claimed, as of metered_at
  metered_at   timestamptz
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);

-- The processes that publish, and when each was last seen at work.
CREATE TABLE outbox_publishers (
  holder  text PRIMARY KEY,
  seen_at timestamptz NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);

-- Who is alive, and when what must happen now and then happened last.
CREATE TABLE outbox_heartbeats (
  name    text PRIMARY KEY,
  kind    text NOT NULL,
  seen_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  facts   jsonb NOT NULL DEFAULT '{}'
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

CREATE FUNCTION outbox_has_room(target text, room integer, keep double precision) RETURNS boolean LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT AS $$
-- Whether one more send to a destination may begin. Who asks goes on alone until its transaction ends: so no two take
-- the last place. Each statement here sees what was committed before it, also while the one that calls this does not.
BEGIN
  PERFORM pg_advisory_xact_lock(hashtextextended(current_setting('search_path') || ' room ' || target, 0));
  RETURN room > (SELECT count(*) FROM outbox_leases
                 WHERE destination = target AND begun_at > clock_timestamp() - keep * interval '1 second'
                   AND locked_until > clock_timestamp());
END
$$;

\ir days.sql
\ir people.sql
\ir feeds.sql
\ir discard.sql
\ir functions.sql
\ir views.sql
\ir private.sql
