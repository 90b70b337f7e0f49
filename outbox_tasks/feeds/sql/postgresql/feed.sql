-- The feed: what is to be copied to the relay. The trigger makes the number, after it has left a mark for the key.
CREATE SEQUENCE IF NOT EXISTS :schema.outbox_feed_number;

CREATE TABLE IF NOT EXISTS :schema.outbox_feed (
  number bigint PRIMARY KEY,
  id uuid NOT NULL DEFAULT gen_random_uuid(),
  created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  ordering_key text CHECK (ordering_key <> '' AND length(ordering_key) <= 255),
  message text NOT NULL
);

-- A transaction that writes a key leaves a mark, to be seen in pg_locks until it ends: the class of the key, and the last
-- number that was given out before. Rows of the class with higher numbers are not copied meanwhile. The locks are shared
-- ones, so writers never wait for each other. Past 32 of them one mark stands for all keys. A mark is 7 bits for this
-- feed, 16 for the class, and the lower 40 of the number. It has the rights of its owner: writers need INSERT only.
CREATE OR REPLACE FUNCTION :schema.outbox_feed_number() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  numbers CONSTANT regclass := format('%I.outbox_feed_number', tg_table_schema);
  feed CONSTANT bigint := (numbers::oid::bigint & 127) << 16;
  setting CONSTANT text := 'outbox.floor' || numbers::oid;
  noted text;  -- the number, and the classes that have a mark
  floor bigint;
  class bigint;
BEGIN
  IF NEW.ordering_key IS NOT NULL THEN
    noted := current_setting(setting, true);
    IF coalesce(noted, '') = '' THEN
      noted := coalesce(pg_sequence_last_value(numbers), 0) || ' ';  -- null: no number was given out yet
    END IF;
    IF right(noted, 4) <> ' all' THEN
      class := feed + 1 + abs(hashtext(NEW.ordering_key) % 65535);
      IF position(' ' || class || ' ' IN noted) = 0 THEN
        floor := split_part(noted, ' ', 1)::bigint & 1099511627775;
        IF cardinality(string_to_array(noted, ' ')) < 34 THEN
          noted := noted || class || ' ' || pg_advisory_xact_lock_shared(class << 40 | floor)::text;
        ELSE
          noted := noted || ' all' || pg_advisory_xact_lock_shared(feed << 40 | floor)::text;
        END IF;
        PERFORM set_config(setting, noted, true);
      END IF;
    END IF;
  END IF;
  NEW.number := nextval(numbers);
  RETURN NEW;
END
$$;

-- Else anybody could call it from a table of his own, with columns of types that run his own functions.
REVOKE EXECUTE ON FUNCTION :schema.outbox_feed_number() FROM PUBLIC;

-- Takes away the rights that the default privileges of the schema gave on a new feed. An inbox beside the relay's own tables
-- keeps its rights: somebody granted them.
DO $do$
DECLARE
  revoked text;
BEGIN
  IF NOT EXISTS (SELECT FROM pg_trigger WHERE tgname = 'outbox_feed_number' AND tgrelid = $n$:schema.outbox_feed$n$::regclass) THEN
    FOR revoked IN
      SELECT DISTINCT format('REVOKE ALL ON TABLE %s FROM %s CASCADE', c.oid::regclass,
                             CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END)
      FROM pg_class c CROSS JOIN LATERAL aclexplode(c.relacl) AS a
      WHERE a.grantee <> c.relowner
        AND (c.oid IN ($n$:schema.outbox_feed$n$::regclass, $n$:schema.outbox_feed_number$n$::regclass)
             OR c.oid = $n$:schema.outbox_inbox$n$::regclass AND to_regclass($n$:schema.outbox_versions$n$) IS NULL)
      UNION ALL
      SELECT format('REVOKE ALL ON FUNCTION %s FROM %s CASCADE', f.oid::regprocedure, a.grantee::regrole)
      FROM pg_proc f CROSS JOIN LATERAL aclexplode(f.proacl) AS a
      WHERE a.grantee NOT IN (0, f.proowner) AND f.oid = $n$:schema.outbox_feed_number()$n$::regprocedure
    LOOP
      EXECUTE revoked;
    END LOOP;
  END IF;
END
$do$;

CREATE OR REPLACE TRIGGER outbox_feed_number BEFORE INSERT ON :schema.outbox_feed
FOR EACH ROW EXECUTE FUNCTION :schema.outbox_feed_number()
