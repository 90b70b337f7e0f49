-- One row for a destination in trouble, or paused; the others need none.
CREATE TABLE :schema.outbox_destinations (
  name         text PRIMARY KEY,
  failures     integer NOT NULL DEFAULT 0,
  failed_at    timestamptz,
  error_code   text,
  error        text,
  opened_at    timestamptz,
  pause_until  timestamptz,
  probe        uuid,
  recovered_at timestamptz,
  paused_at    timestamptz,
  paused_by    text,
  paused_why   text
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);

-- Sends in a row that failed because the destination was out of reach.
ALTER TABLE :schema.outbox_messages ADD COLUMN outages integer NOT NULL DEFAULT 0;
