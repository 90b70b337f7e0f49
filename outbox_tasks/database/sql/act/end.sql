-- Ends an act, and notes in the audit how it ended; returns its entry, unless it had ended before. entry; found (JSON): more facts.
WITH gone AS (
  DELETE FROM :schema.outbox_acts WHERE act = :entry::bigint RETURNING act
)
UPDATE :schema.outbox_audit b
SET facts = b.facts || :found::text::jsonb || jsonb_build_object(
      'seconds', round((date_part('epoch', clock_timestamp()) - date_part('epoch', b.at))::numeric, 1)),
    closed_at = clock_timestamp()
FROM gone WHERE b.seq = gone.act RETURNING b.seq AS entry
