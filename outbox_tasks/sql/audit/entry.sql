-- One act. entry: its seq.
SELECT
  \ir parts/shown.sql
FROM :schema.outbox_audit b WHERE b.seq = :entry::bigint
