-- The broker has lost these tasks: they are due now. Returns how many.
-- destination; queue (null: all); made: the queue of tasks that were not stored as such; before: only those that were
-- handed over before this time, and `sure` seconds earlier: twice as long after each time that it was sent again, so that a
-- mistake does not repeat itself quickly; most.
WITH found AS (
  SELECT r.seq FROM :schema.outbox_runs r JOIN :schema.outbox_messages m ON m.seq = r.seq
  WHERE r.destination = :destination::text AND r.state = 'handed over' AND r.locked_until > now()
    AND r.handed_at < :before::timestamptz - :sure::float * 2 ^ least(r.unheard, 6) * interval '1 second'
    AND (:queue::text IS NULL OR coalesce(:schema.outbox_task_queue(m.headers), :made::text) = :queue)
  ORDER BY r.locked_until LIMIT :most::integer FOR UPDATE OF r SKIP LOCKED
), changed AS (
  UPDATE :schema.outbox_runs r SET locked_until = clock_timestamp() FROM found WHERE r.seq = found.seq RETURNING 1
)
SELECT count(*) FROM changed
