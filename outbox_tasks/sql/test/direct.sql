-- The leases that writers have given their messages, those with a higher number than `since`.
SELECT token::text FROM :schema.outbox_leases WHERE holder IS NULL AND begun_at IS NULL AND seqs[1] > :since::bigint
