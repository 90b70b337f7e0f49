-- How many sends to one destination may run at once: each holds one of its slots, from begin to settle.
CREATE TABLE :schema.outbox_slots (
  destination text NOT NULL,
  slot        integer NOT NULL,
  token       uuid,
  holder      text,
  taken_at    timestamptz,
  held_until  timestamptz,
  PRIMARY KEY (destination, slot)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);

-- The processes that publish, and when each was last seen at work.
CREATE TABLE :schema.outbox_publishers (
  holder  text PRIMARY KEY,
  seen_at timestamptz NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);

-- Rate limits: what may be claimed, as of when.
ALTER TABLE :schema.outbox_destinations ADD COLUMN allowance double precision, ADD COLUMN metered_at timestamptz;

-- When a message was to be delivered, if that was later than it was written: its age counts from then.
ALTER TABLE :schema.outbox_messages ADD COLUMN deliver_at timestamptz;

CREATE FUNCTION :schema.outbox_keep_deliver_at() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  NEW.deliver_at := NEW.locked_until;
  RETURN NEW;
END
$$;

CREATE TRIGGER outbox_keep_deliver_at BEFORE INSERT ON :schema.outbox_messages
  FOR EACH ROW WHEN (NEW.locked_until > clock_timestamp()) EXECUTE FUNCTION :schema.outbox_keep_deliver_at();
