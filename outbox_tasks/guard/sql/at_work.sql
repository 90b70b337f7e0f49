-- The numbers of all messages at work: due, waiting, held, leased, handed over, running or dead.
SELECT seq FROM :schema.outbox_ready
UNION ALL SELECT seq FROM :schema.outbox_waiting
UNION ALL SELECT seq FROM :schema.outbox_held
UNION ALL SELECT seq FROM :schema.outbox_leases CROSS JOIN LATERAL unnest(seqs) AS seq
UNION ALL SELECT seq FROM :schema.outbox_runs
UNION ALL SELECT seq FROM :schema.outbox_dead
