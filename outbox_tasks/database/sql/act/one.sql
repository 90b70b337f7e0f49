-- An act as the audit has it, and what is still to do; `wanted` is null if it has ended, or never went on in the background.
-- entry: its seq.
SELECT
  \ir ../audit/parts/shown.sql
  ,
  \ir parts/going.sql
  , a.place
FROM :schema.outbox_audit b LEFT JOIN :schema.outbox_acts a ON a.act = b.seq WHERE b.seq = :entry::bigint
