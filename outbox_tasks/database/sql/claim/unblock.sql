-- Frees the keys that stand behind a dead letter, of `destinations` whose dead letters hold up nothing, or nothing any more.
WITH freed AS (
  UPDATE :schema.outbox_keys k SET due = clock_timestamp()
  WHERE k.destination = ANY (:destinations::text[]) AND k.token IS NULL AND k.due = 'infinity' RETURNING 1
)
SELECT count(*) FROM freed
