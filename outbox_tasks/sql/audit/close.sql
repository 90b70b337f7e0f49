-- Closes the entry of an act that has ended. entry; found (JSON): facts more.
UPDATE :schema.outbox_audit SET facts = facts || :found::text::jsonb, closed_at = clock_timestamp() WHERE seq = :entry::bigint
RETURNING seq
