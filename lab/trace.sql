-- Notes every change of a message's row, in the statement that makes it. For test runs only: `init` does not run this.
-- `transitions.py` says which changes there may be.
CREATE TABLE IF NOT EXISTS :schema.outbox_transitions (
  n bigint GENERATED ALWAYS AS IDENTITY,
  at timestamptz NOT NULL DEFAULT clock_timestamp(),
  transaction bigint NOT NULL DEFAULT txid_current(),
  who text DEFAULT current_setting('application_name'),
  holder text,             -- locked_by
  id uuid NOT NULL,
  before text NOT NULL,
  after text NOT NULL,
  lease text NOT NULL,     -- none, same, new, gone
  counted integer NOT NULL,  -- by how much the attempts changed
  attempts integer,
  ends text NOT NULL,      -- locked_until is past, now or ahead
  moved text NOT NULL,     -- locked_until is earlier, same or later than before
  code text,               -- last_error_code
  kept boolean NOT NULL,   -- the code is as before
  rewritten boolean NOT NULL  -- the payload or the headers changed
);

CREATE OR REPLACE FUNCTION :schema.outbox_state_of_row(m :schema.outbox_messages) RETURNS text LANGUAGE sql IMMUTABLE AS $$
  SELECT CASE
    WHEN m.status = 'dead' AND m.lease IS NULL AND NOT m.begun AND m.handed_at IS NULL THEN 'dead'
    WHEN m.status <> 'pending' OR m.lease IS NULL AND (m.begun OR m.handed_at IS NOT NULL) THEN 'impossible'
    WHEN m.lease IS NULL THEN 'pending'
    WHEN m.handed_at IS NULL THEN CASE WHEN m.begun THEN 'begun' ELSE 'leased' END
    ELSE CASE WHEN m.begun THEN 'running' ELSE 'handed over' END
  END
$$;

-- What is due is asked by now(), as a claim asks it. A lease that this statement granted ends after now(), however long
-- the server stood still meanwhile.
CREATE OR REPLACE FUNCTION :schema.outbox_note_transition() RETURNS trigger LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  before text := 'none';
  after text;
  gone record;
BEGIN
  IF TG_OP <> 'INSERT' THEN
    before := :schema.outbox_state_of_row(OLD);
    IF before = 'pending' AND OLD.locked_until > now() THEN
      before := 'waiting';
    ELSIF before NOT IN ('pending', 'dead', 'impossible') AND OLD.locked_until <= now() THEN
      before := before || ', run out';
    END IF;
  END IF;
  IF TG_OP = 'DELETE' THEN
    SELECT a.state, a.attempts, a.last_error_code AS code INTO gone FROM :schema.outbox_archive a
    WHERE a.id = OLD.id AND a.finished_at >= now();
    INSERT INTO :schema.outbox_transitions
           (holder, id, before, after, lease, counted, attempts, ends, moved, code, kept, rewritten)
    VALUES (OLD.locked_by, OLD.id, before, coalesce(gone.state, 'deleted'),
            CASE WHEN OLD.lease IS NULL THEN 'none' ELSE 'gone' END, coalesce(gone.attempts - OLD.attempts, 0),
            gone.attempts, 'ahead', 'same', gone.code, gone.state IS NULL OR gone.code IS NOT DISTINCT FROM
            OLD.last_error_code, false);
    RETURN NULL;
  END IF;
  after := :schema.outbox_state_of_row(NEW);
  INSERT INTO :schema.outbox_transitions
         (holder, id, before, after, lease, counted, attempts, ends, moved, code, kept, rewritten)
  VALUES (NEW.locked_by, NEW.id, before, after,
          CASE WHEN OLD.lease IS NOT DISTINCT FROM NEW.lease THEN CASE WHEN NEW.lease IS NULL THEN 'none' ELSE 'same' END
               WHEN NEW.lease IS NULL THEN 'gone' ELSE 'new' END,
          NEW.attempts - coalesce(OLD.attempts, 0), NEW.attempts,
          CASE WHEN NEW.locked_until <= now() THEN 'past' WHEN NEW.locked_until <= clock_timestamp() THEN 'now'
               ELSE 'ahead' END,
          CASE WHEN NEW.locked_until < OLD.locked_until THEN 'earlier' WHEN NEW.locked_until > OLD.locked_until THEN 'later'
               ELSE 'same' END,
          NEW.last_error_code, NEW.last_error_code IS NOT DISTINCT FROM OLD.last_error_code,
          TG_OP = 'UPDATE' AND (NEW.payload, NEW.headers) IS DISTINCT FROM (OLD.payload, OLD.headers));
  RETURN NULL;
END
$$;

-- A row that is archived has left the table in the same statement.
CREATE OR REPLACE FUNCTION :schema.outbox_note_archived() RETURNS trigger LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  INSERT INTO :schema.outbox_transitions
         (holder, id, before, after, lease, counted, attempts, ends, moved, code, kept, rewritten)
  SELECT m.locked_by, m.id, :schema.outbox_state_of_row(m), NEW.state || ', and still in the table', 'same', 0,
         NEW.attempts, 'ahead', 'same', NEW.last_error_code, true, false
  FROM :schema.outbox_messages m WHERE m.id = NEW.id;
  RETURN NULL;
END
$$;

DROP TRIGGER IF EXISTS outbox_note_transition ON :schema.outbox_messages;
CREATE TRIGGER outbox_note_transition AFTER INSERT OR UPDATE OR DELETE ON :schema.outbox_messages
  FOR EACH ROW EXECUTE FUNCTION :schema.outbox_note_transition();
DROP TRIGGER IF EXISTS outbox_note_archived ON :schema.outbox_archive;
CREATE TRIGGER outbox_note_archived AFTER INSERT ON :schema.outbox_archive
  FOR EACH ROW EXECUTE FUNCTION :schema.outbox_note_archived();
