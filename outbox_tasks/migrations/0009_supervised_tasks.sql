-- When a task was handed over to the tasks' broker, if its row stays until it has run. Null: it is not handed over.
ALTER TABLE :schema.outbox_messages ADD COLUMN handed_at timestamptz;

-- Tasks that have not begun to run. The search for tasks that were lost in the broker reads it.
CREATE INDEX outbox_messages_handed ON :schema.outbox_messages (destination, locked_until)
  WHERE handed_at IS NOT NULL AND NOT begun;

-- Which outbox this is. A worker compares it with what a task says, so that it does not look in another one's tables.
DO $$
BEGIN
  IF to_regprocedure(format('%I.outbox_identity()', :schema_literal)) IS NULL THEN
    EXECUTE format('CREATE FUNCTION %I.outbox_identity() RETURNS uuid LANGUAGE sql IMMUTABLE PARALLEL SAFE AS %L',
                   :schema_literal, format('SELECT %L::uuid', gen_random_uuid()));
  END IF;
END
$$;

CREATE OR REPLACE VIEW :schema.outbox_all AS
SELECT id, seq, destination, key, event_type,
       CASE WHEN status = 'dead' THEN 'dead'
            WHEN handed_at IS NOT NULL AND locked_until > now() THEN CASE WHEN begun THEN 'running' ELSE 'handed over' END
            WHEN lease IS NOT NULL AND locked_until > now() AND (begun OR attempts = 0) THEN 'leased'
            WHEN attempts > 0 THEN 'retrying'
            WHEN locked_until > now() THEN 'scheduled'
            ELSE 'pending' END AS state,
       attempts, last_error_code, last_error, :schema.outbox_readable(payload) AS payload, content_type, headers,
       aggregate_type, aggregate_id, locked_by, created_at, locked_until, dead_at, NULL::timestamptz AS finished_at,
       history, handed_at
FROM :schema.outbox_messages
UNION ALL
SELECT id, seq, destination, key, event_type, state,
       attempts, last_error_code, last_error, :schema.outbox_readable(payload), content_type, headers,
       aggregate_type, aggregate_id, locked_by, created_at, NULL, NULL, finished_at, history, NULL
FROM :schema.outbox_archive;
