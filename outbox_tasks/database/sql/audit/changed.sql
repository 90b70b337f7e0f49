-- The ids that the entry of a redrive keeps, and when it began. entry: its seq.
SELECT CASE WHEN kept.id ~ '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$' THEN kept.id::uuid END AS id, b.at
FROM :schema.outbox_audit b
CROSS JOIN LATERAL jsonb_array_elements_text(
  CASE WHEN jsonb_typeof(b.facts -> 'changed') = 'array' THEN b.facts -> 'changed' ELSE '[]' END) AS kept(id)
WHERE b.seq = :entry::bigint
