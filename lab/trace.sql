-- Notes every change of where a message is, in the statement that makes it. For test runs only: `init` does not run this.
-- `moves.py` says which changes there may be.
CREATE TABLE IF NOT EXISTS :schema.outbox_transitions (
  n bigint GENERATED ALWAYS AS IDENTITY,
  at timestamptz NOT NULL DEFAULT clock_timestamp(),
  transaction bigint NOT NULL DEFAULT txid_current(),
  who text DEFAULT current_setting('application_name'),
  seq bigint NOT NULL,
  place text NOT NULL,       -- ready, waiting, held, leased, begun, handed over, running, dead, sent or discarded
  rows smallint NOT NULL,    -- 1: a row came to that place; -1: it left it
  run_out boolean NOT NULL,  -- its lease had run out
  token uuid,
  holder text
);

CREATE OR REPLACE FUNCTION :schema.outbox_note_place(r jsonb, name text, rows integer) RETURNS void LANGUAGE sql
SET search_path = pg_catalog, pg_temp AS $$
  INSERT INTO :schema.outbox_transitions (seq, place, rows, run_out, token, holder)
  SELECT s, CASE name WHEN 'outbox_leases' THEN CASE WHEN r ->> 'begun_at' IS NULL THEN 'leased' ELSE 'begun' END
                      WHEN 'outbox_runs' THEN r ->> 'state' WHEN 'outbox_journal' THEN r ->> 'state'
                      ELSE substr(name, 8) END,
         rows, coalesce((r ->> 'locked_until')::timestamptz <= now(), false), (r ->> 'token')::uuid, r ->> 'holder'
  FROM (SELECT (r ->> 'seq')::bigint AS s WHERE r ? 'seq'
        UNION ALL
        SELECT e::bigint FROM jsonb_array_elements_text(CASE name WHEN 'outbox_leases' THEN r -> 'seqs' ELSE '[]' END) AS e
        UNION ALL
        SELECT generate_series(lower(g), upper(g) - 1)
        FROM unnest(CASE name WHEN 'outbox_journal' THEN (r ->> 'seqs')::int8multirange ELSE '{}' END) AS g) AS of_row
$$;

CREATE OR REPLACE FUNCTION :schema.outbox_note_transition() RETURNS trigger LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF TG_OP <> 'INSERT' THEN
    PERFORM :schema.outbox_note_place(to_jsonb(OLD), TG_ARGV[0], -1);
  END IF;
  IF TG_OP <> 'DELETE' THEN
    PERFORM :schema.outbox_note_place(to_jsonb(NEW), TG_ARGV[0], 1);
  END IF;
  RETURN NULL;
END
$$;

DO $do$
DECLARE
  name text;
BEGIN
  FOREACH name IN ARRAY ARRAY['ready', 'waiting', 'held', 'leases', 'runs', 'dead', 'journal'] LOOP
    EXECUTE format('DROP TRIGGER IF EXISTS outbox_note_transition ON :schema.outbox_%s', name);
    EXECUTE format('CREATE TRIGGER outbox_note_transition AFTER INSERT OR UPDATE OR DELETE ON :schema.outbox_%s '
                   'FOR EACH ROW EXECUTE FUNCTION :schema.outbox_note_transition(%L)', name, 'outbox_' || name);
  END LOOP;
END
$do$;
