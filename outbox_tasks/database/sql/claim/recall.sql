-- Ends leases that nobody will use; the housekeeping of the next claim finds them. There are two cases:
--   1. gone is a process that has ended: its leases end, and the slots of its drains.
--   2. gone is null: the broker has lost its queues. All leases of singles that have not begun end, and the slots of all drains that
--      have not begun. A single that waits for Celery's retry is due at the time of that retry.
-- hold: how many seconds longer than the wait for a retry a lease is. Returns how many messages the leases had.
WITH slots AS (
  UPDATE :schema.outbox_drains d SET until = now()
  WHERE d.holder = :gone::text OR :gone IS NULL AND d.holder IS NULL
), ended AS (
  UPDATE :schema.outbox_leases l
  SET locked_until = least(l.locked_until, CASE WHEN l.begun_at IS NOT NULL THEN now()
                             ELSE greatest(now(), l.locked_until - :hold::float * interval '1 second') END)
  WHERE l.token IN (
    SELECT token FROM :schema.outbox_leases
    WHERE locked_until > now() AND (holder = :gone::text OR :gone IS NULL AND begun_at IS NULL)
    FOR UPDATE SKIP LOCKED)
  RETURNING l.seqs
)
SELECT coalesce(sum(cardinality(seqs)), 0)::integer FROM ended
