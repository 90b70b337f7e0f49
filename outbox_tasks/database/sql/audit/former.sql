-- The payload before the edit of an entry, in base64. entry: its seq.
SELECT facts ->> 'former' AS payload FROM :schema.outbox_audit WHERE seq = :entry::bigint AND facts ->> 'former' IS NOT NULL
