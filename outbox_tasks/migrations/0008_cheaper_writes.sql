-- The same marks as before, at half the cost. Each step is a single expression, which PL/pgSQL evaluates without a query.
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
    -- Null: no number was given out yet.
    noted := coalesce(pg_sequence_last_value(':schema.outbox_messages_seq_seq'), 0) || ' ';
  END IF;
  IF right(noted, 4) <> ' all' THEN
    class := :schema.outbox_key_class(NEW.destination, NEW.key);
    IF position(' ' || class || ' ' IN noted) = 0 THEN
      floor := split_part(noted, ' ', 1);
      -- The functions that take a lock return an empty text.
      IF cardinality(string_to_array(noted, ' ')) < 34 THEN
        noted := noted || class || ' ' || pg_advisory_xact_lock_shared(class, (floor & 2147483647)::integer)::text;
      ELSE
        noted := floor || ' all'
          || pg_advisory_xact_lock_shared(:schema.outbox_all_keys(), (floor & 2147483647)::integer)::text;
      END IF;
      noted := set_config('outbox.floor', noted, true);
    END IF;
  END IF;
  NEW.seq := nextval(':schema.outbox_messages_seq_seq');
  RETURN NEW;
END
$$;

-- The end of its writer's lease is not when a message is to be delivered.
CREATE OR REPLACE TRIGGER outbox_keep_deliver_at BEFORE INSERT ON :schema.outbox_messages
  FOR EACH ROW WHEN (NEW.lease IS NULL AND NEW.locked_until > clock_timestamp())
  EXECUTE FUNCTION :schema.outbox_keep_deliver_at();
