-- Ends the leases of a process that is gone (null: of all) that were not begun, and those that it has begun: the next
-- claim finds them. A retry waits until its time. Frees the slots of its drains, too; or those of all that were only asked for.
-- gone; hold: seconds that a lease is granted beyond a wait. Returns how many messages the leases had.
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
