-- The acts on one message, the first one first. target: its id; named: the seqs that its history names. Two look-ups by index.
SELECT
  \ir parts/shown.sql
FROM :schema.outbox_audit b
WHERE b.seq = ANY (ARRAY(SELECT seq FROM :schema.outbox_audit WHERE target = :target::text UNION SELECT unnest(:named::bigint[])))
ORDER BY b.seq
