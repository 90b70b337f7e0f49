-- The tables of an outbox.
--
-- outbox_messages has what was published: a message is written once and never changed. Where it is in its life, a narrow row in one
-- of these tables says:
--
--   ready      It is due, or has just been written. Claims and drains take messages from here.
--   waiting    It is due later and has no key: it is scheduled, or it failed and will be tried again.
--   held       It has a key, and is due later, or stands behind another message of its key: see outbox_keys.
--   leases     Somebody has it: its single is in the broker's queue, or a worker sends it. A batch is one row.
--   runs       It is a supervised task, which the tasks' broker has, or a worker runs.
--   dead       It is a dead letter: nobody sends it any more, unless a person redrives it.
--   journal    It has ended: it was sent or discarded. A batch is one row.
--
-- A message at work is in exactly one of the first six; then it leaves for the journal. So each message is at work or in the
-- journal: `look/books.sql` counts both sides. outbox_trouble has one more row for each message that did not arrive at once: its
-- attempts, its last error, its history.
--
-- Run it in psql:  psql -v schema=public -f schema.sql

-- Functions keep this path. PostgreSQL looks into pg_catalog before it, and pg_temp is the last: nobody can put a function
-- or a table of their own in the place of PostgreSQL's or ours.
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

-- The checks bound what a writer can put into a row: claims, indexes and pages read many rows at a time.
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
-- Finds messages by aggregate id or key: see outbox_about. It has one entry for 32 pages, made once these are full, and costs writers
-- nothing that can be measured.
CREATE INDEX outbox_messages_about ON outbox_messages USING brin (aggregate_id text_bloom_ops, key text_bloom_ops)
WITH (pages_per_range = 32, autosummarize = on);

CREATE TABLE outbox_messages_0 PARTITION OF outbox_messages FOR VALUES FROM (0) TO (4294967296);

-- Ready: messages that are due or new. The rows are narrow, so to take one out costs little. Each process reads a destination from
-- where it was before (see claim/take_keyless.sql): it does not read again the rows that are gone, and that an old snapshot keeps.
-- A new message with a key comes here even if it is scheduled: the take finds its place behind others of its key.
CREATE TABLE outbox_ready (
  seq         bigint NOT NULL,
  xid         xid8 NOT NULL DEFAULT pg_current_xact_id(),      -- the transaction that wrote the row
  since       timestamptz NOT NULL DEFAULT clock_timestamp(),  -- since when it is due
  size        integer NOT NULL,                                -- bytes of the payload
  attempts    smallint NOT NULL DEFAULT 0,
  priority    smallint NOT NULL DEFAULT 0,
  alone       boolean NOT NULL DEFAULT false,  -- it may have failed its last batch, or killed a worker: it is sent by itself
  destination text NOT NULL,
  key         text
) WITH (
  -- Each row is inserted and deleted: vacuum by count, not by a share.
  autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000,
  autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 100000,
  autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 50000
);
CREATE INDEX outbox_ready_lanes ON outbox_ready (destination, priority, xid, seq) WHERE key IS NULL AND NOT alone;
CREATE INDEX outbox_ready_alone ON outbox_ready (destination, seq) WHERE alone;
CREATE INDEX outbox_ready_keys ON outbox_ready (destination, seq) WHERE key IS NOT NULL;
-- Finds one message, and costs writers next to nothing.
CREATE INDEX outbox_ready_seq ON outbox_ready USING brin (seq) WITH (pages_per_range = 16, autosummarize = on);

-- Waiting: messages without a key that are due later. claim/wake.sql moves them to ready when their wait is over.
CREATE TABLE outbox_waiting (
  seq         bigint PRIMARY KEY,
  due         timestamptz NOT NULL,
  since       timestamptz NOT NULL,  -- when it was due first
  attempts    smallint NOT NULL DEFAULT 0,
  alone       boolean NOT NULL DEFAULT false,
  destination text NOT NULL
);
CREATE INDEX outbox_waiting_due ON outbox_waiting (due);
CREATE INDEX outbox_waiting_destination ON outbox_waiting (destination, due);

-- Held: messages with a key that must wait, for their time or for another message of their key. They are taken from here, the first
-- of each key first.
CREATE TABLE outbox_held (
  destination text NOT NULL,
  key         text NOT NULL,
  seq         bigint NOT NULL,
  since       timestamptz NOT NULL,  -- from when on it may be sent
  size        integer NOT NULL,
  attempts    smallint NOT NULL DEFAULT 0,
  alone       boolean NOT NULL DEFAULT false,
  PRIMARY KEY (destination, key, seq)
);
CREATE INDEX outbox_held_seq ON outbox_held USING brin (seq) WITH (pages_per_range = 16, autosummarize = on);

-- The busy keys. A key without a row is free, and nothing of it is held. A key with a row is in one of three cases:
--   1. token is set. A lease with this token has messages of the key, or a supervised task of the key has not ended. Then due is
--      infinity, unless a message was redriven meanwhile.
--   2. No token, and due has passed. The key is free, and messages of it are held: the next take has them. Takes do not look again at
--      keys that became free long ago. So due is -infinity if an application freed the key: its commit may come at any later time.
--   3. No token, and due is later. The first message of the key waits: for another attempt, for its time, or (infinity) behind a
--      dead letter that a person must look at.
-- Only a take (see keys.sql) sets a token. The settle that ends a lease deletes the rows with its token, and inserts a row without
-- a token for each key of which something is held.
CREATE TABLE outbox_keys (
  destination text NOT NULL,
  key         text NOT NULL,
  token       uuid,
  due         timestamptz NOT NULL DEFAULT clock_timestamp(),
  more        boolean NOT NULL DEFAULT false,  -- something may be held of it
  first       bigint NOT NULL DEFAULT 0,       -- no message with a lower number is held or a dead letter: reading begins here
  PRIMARY KEY (destination, key)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);
CREATE INDEX outbox_keys_free ON outbox_keys (destination, due) WHERE token IS NULL;

-- Leases: who may send which messages, and until when. The token is the fence: who begins or settles must name it. There are two
-- kinds of leases:
--   1. Of a single: it has one message, whose task is in the broker's queue. begun_at is null until its send begins.
--   2. Of a drain's batch: its send has begun as it was taken.
-- When a lease runs out, its messages are due again (claim/expire.sql). A lease that was given back before its send has no holder.
CREATE TABLE outbox_leases (
  token        uuid PRIMARY KEY,
  locked_until timestamptz NOT NULL,
  begun_at     timestamptz,
  destination  text NOT NULL,
  holder       text,                  -- the process that claimed it, or sends it
  seqs         bigint[] NOT NULL CHECK (cardinality(seqs) BETWEEN 1 AND 1000)  -- they come back as a whole
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);
-- Not compressed: the row is gone in a moment, and compression would take longer than all else that a lease costs.
ALTER TABLE outbox_leases ALTER seqs SET STORAGE EXTERNAL;
CREATE INDEX outbox_leases_end ON outbox_leases (locked_until);

-- The slots of drains that were asked for, or are at work. A drain that was killed keeps its slot until `until`.
CREATE TABLE outbox_drains (
  destination text NOT NULL,
  slot        smallint NOT NULL,
  token       uuid NOT NULL,
  holder      text,  -- null: its task is in the broker's queue
  until       timestamptz NOT NULL,
  PRIMARY KEY (destination, slot)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);

-- Runs: supervised tasks. A task is handed over once the tasks' broker has it, and running once a worker has begun it. Until its
-- end is known, its key is busy. After `locked_until` it counts as lost, and is due again.
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

-- Dead letters: messages that are not sent any more, until a person redrives or discards them.
CREATE TABLE outbox_dead (
  seq         bigint PRIMARY KEY,
  dead_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
  kin         text NOT NULL,  -- dead letters with the same error have the same kin: see outbox_error_group
  destination text NOT NULL,
  key         text
);
CREATE INDEX outbox_dead_at ON outbox_dead (destination, dead_at, seq);
CREATE INDEX outbox_dead_kin ON outbox_dead (kin, dead_at, seq);
CREATE INDEX outbox_dead_keys ON outbox_dead (destination, key, seq) WHERE key IS NOT NULL;

-- What happened to messages that did not arrive at once.
CREATE TABLE outbox_trouble (
  seq      bigint PRIMARY KEY,
  attempts integer NOT NULL DEFAULT 0,  -- sends that failed, or whose end is unknown; at most 30000
  spared   integer NOT NULL DEFAULT 0,  -- how many of these attempts do not count against max_attempts
  outages  integer NOT NULL DEFAULT 0,  -- sends in a row that met a destination out of reach
  unheard  smallint NOT NULL DEFAULT 0, -- how often in a row it was handed over and no worker began it
  since    timestamptz,                 -- it was redriven then: from there its age counts
  code     text,
  error    text,
  history  jsonb NOT NULL DEFAULT '[]'
) WITH (fillfactor = 70);

-- The journal: messages that have ended, one row a batch. A message was sent if the journal says so.
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

-- Frees a key, from `due` on: the run that had it has ended, or the dead letter that held it up is gone.
CREATE FUNCTION outbox_free(target text, freed text, due timestamptz DEFAULT '-infinity') RETURNS void LANGUAGE sql VOLATILE
SET search_path FROM CURRENT AS $$
  WITH gone AS (
    DELETE FROM outbox_keys k WHERE k.destination = target AND k.key = freed RETURNING k.due, k.more, k.first
  )
  INSERT INTO outbox_keys (destination, key, due, more, first)
  SELECT target, freed, least(outbox_free.due, gone.due), true, first FROM gone WHERE more OR outbox_free.due > clock_timestamp()
$$;

-- Whether a message with this last error is sent by itself: it may have killed a worker, or made its batch fail.
CREATE FUNCTION outbox_goes_alone(code text) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT coalesce(code IN ('unsettled', 'failed_together', 'failed_alone'), false)
$$;

-- The history of a message with one more entry. Of 30 entries the second one goes, so the first and the last ones are kept.
CREATE FUNCTION outbox_noted(history jsonb, entry jsonb) RETURNS jsonb LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT CASE WHEN jsonb_array_length(history) < 30 THEN history ELSE history - 1 END || jsonb_strip_nulls(entry)
$$;

CREATE FUNCTION outbox_error_group(destination text, event_type text, code text, error text)
RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  -- Errors that differ only in ids, numbers and what stands in quotes are one group.
  SELECT left(md5(concat_ws(E'\x1f', destination, event_type, code,
    regexp_replace(regexp_replace(regexp_replace(left(error, 500),
      '[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}', '<id>', 'g'),
      '''[^'']*''|"[^"]*"', '<text>', 'g'),
      '[0-9a-fA-F]*[0-9][0-9a-fA-F]*', '<n>', 'g'))), 12)
$$;

-- A destination that is or was in trouble, is paused, or has a rate. Other destinations have no row.
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
  allowance    double precision, -- how many messages its rate allowed at metered_at
  metered_at   timestamptz
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);

-- What people have set in the place of settings of a destination: messages a second, processes, and how many messages travel
-- singly (infinity: all). A row counts until its end, or until somebody clears it.
CREATE TABLE outbox_limits (
  destination text NOT NULL,
  setting     text NOT NULL,
  value       double precision NOT NULL,
  until       timestamptz,
  since       timestamptz NOT NULL DEFAULT clock_timestamp(),
  who         text NOT NULL,
  why         text,
  PRIMARY KEY (destination, setting),
  CHECK (CASE setting WHEN 'rate_limit' THEN value BETWEEN 0.0001 AND 1000000
                      WHEN 'concurrency' THEN value BETWEEN 1 AND 10000 AND value = trunc(value)
                      WHEN 'singles' THEN value = 'infinity' OR value BETWEEN 0 AND 200 AND value = trunc(value)
                      ELSE false END)
);

-- Which processes are alive, and when what must happen regularly happened last.
CREATE TABLE outbox_heartbeats (
  name    text PRIMARY KEY,
  kind    text NOT NULL,
  seen_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  facts   jsonb NOT NULL DEFAULT '{}'
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- Whether a destination gets nothing now: it is paused, or its circuit is open.
CREATE FUNCTION outbox_is_shut(target text) RETURNS boolean LANGUAGE sql STABLE SET search_path FROM CURRENT AS $$
  SELECT EXISTS (SELECT FROM outbox_destinations d WHERE d.name = target AND (d.paused_at IS NOT NULL OR d.opened_at IS NOT NULL))
$$;

-- Messages that were taken, with all that their send needs, in the order of their numbers. attempts: sends before this one; newer:
-- it has failed, and a newer message of its key replaces it; age: seconds since it was due; payload: null if it has more bytes than
-- `largest`. The function is not stable: the statement that has taken the messages could not see those that were written after it
-- began.
CREATE FUNCTION outbox_leased_messages(taken bigint[], largest integer) RETURNS TABLE (
  seq bigint, id text, event_type text, destination text, key text, size integer, payload bytea, content_type text, headers jsonb,
  aggregate_type text, aggregate_id text, created_at float, attempts integer, spared integer, latest boolean, newer boolean, age float
) LANGUAGE sql VOLATILE SET search_path FROM CURRENT AS $$
  SELECT m.seq, m.id::text, m.event_type, m.destination, m.key, octet_length(m.payload),
         CASE WHEN octet_length(m.payload) <= largest THEN m.payload END, m.content_type, m.headers, m.aggregate_type, m.aggregate_id,
         date_part('epoch', m.created_at), coalesce(t.attempts, 0), coalesce(t.spared, 0), m.latest,
         m.latest AND t.attempts > 0 AND EXISTS (
           SELECT FROM outbox_held h WHERE h.destination = m.destination AND h.key = m.key AND h.seq > m.seq AND h.since <= now()),
         date_part('epoch', clock_timestamp()) - date_part('epoch', coalesce(t.since, m.deliver_at, m.created_at))
  FROM outbox_messages m
  LEFT JOIN LATERAL (SELECT * FROM outbox_trouble t
                     WHERE t.seq = m.seq AND (SELECT EXISTS (SELECT FROM outbox_trouble t WHERE t.seq = ANY (taken))) LIMIT 1) AS t ON true
  WHERE m.seq = ANY (taken)
    AND m.seq >= (SELECT min(s) FROM unnest(taken) AS s) AND m.seq <= (SELECT max(s) FROM unnest(taken) AS s)  -- its day's partition
  ORDER BY m.seq
$$;

\ir keys.sql

-- The first destination of which something is due, between the names `low` and `high` (null: any name after `low`).
CREATE FUNCTION outbox_next_destination(low text, high text) RETURNS text LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_bitmapscan = off AS $$
BEGIN
  IF high IS NULL THEN
    RETURN least(
      (SELECT destination FROM outbox_ready WHERE key IS NULL AND NOT alone AND destination > low ORDER BY destination LIMIT 1),
      (SELECT destination FROM outbox_ready WHERE alone AND destination > low ORDER BY destination LIMIT 1),
      (SELECT destination FROM outbox_ready WHERE key IS NOT NULL AND destination > low ORDER BY destination LIMIT 1),
      (SELECT destination FROM outbox_keys WHERE token IS NULL AND destination > low AND due <= now() ORDER BY destination LIMIT 1));
  END IF;
  RETURN least(
    (SELECT destination FROM outbox_ready
     WHERE key IS NULL AND NOT alone AND destination > low AND destination < high ORDER BY destination LIMIT 1),
    (SELECT destination FROM outbox_ready WHERE alone AND destination > low AND destination < high ORDER BY destination LIMIT 1),
    (SELECT destination FROM outbox_ready
     WHERE key IS NOT NULL AND destination > low AND destination < high ORDER BY destination LIMIT 1),
    (SELECT destination FROM outbox_keys
     WHERE token IS NULL AND destination > low AND destination < high AND due <= now() ORDER BY destination LIMIT 1));
END
$$;
\ir days.sql
\ir people.sql
\ir discard.sql
\ir functions.sql
\ir views.sql
\ir private.sql
