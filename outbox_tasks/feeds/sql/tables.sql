-- What the bridges of feeds keep, after schema.sql. A feed is a table in an application's own database.

-- One lease a feed, and what people see of it.
CREATE TABLE outbox_feeds (
  name         text PRIMARY KEY,
  token        uuid,
  holder       text,
  locked_until timestamptz NOT NULL DEFAULT '-infinity',
  looked_at    timestamptz,
  copied       bigint NOT NULL DEFAULT 0,
  waiting      bigint NOT NULL DEFAULT 0,            -- rows at the source, as of the last run; counted to 10,000
  age          double precision NOT NULL DEFAULT 0,  -- of the oldest, in seconds
  failures     integer NOT NULL DEFAULT 0,           -- runs in a row
  failed_at    timestamptz,
  not_before   timestamptz,                          -- the next run may begin then
  error        text
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);

-- What was copied: one row a batch. A source that is restored brings rows again, and may give out a number again for
-- another row. So a row is known by its number and its id.
CREATE TABLE outbox_copied (
  feed    text NOT NULL,
  at      timestamptz NOT NULL DEFAULT clock_timestamp(),
  span    int8range NOT NULL,
  numbers bigint[] NOT NULL,
  ids     text[] NOT NULL,
  deleted boolean NOT NULL DEFAULT false  -- at the source
);
CREATE INDEX outbox_copied_span ON outbox_copied USING gist (span);
CREATE INDEX outbox_copied_at ON outbox_copied (at) WHERE deleted;
CREATE INDEX outbox_copied_left ON outbox_copied (feed) WHERE NOT deleted;

SELECT outbox_private('outbox_feeds'), outbox_private('outbox_copied');
