-- The broker still has many tasks: those that would be sent again within `soon` seconds wait for `within` seconds more, up
-- to eight times as long in all. Returns how many. destination; queue; made: the queue of tasks that were not stored as
-- such; soon; within; most.
WITH found AS (
  SELECT r.seq, least(r.handed_at, now()) + :within::float * 8 * interval '1 second' AS longest
  FROM :schema.outbox_runs r JOIN :schema.outbox_messages m ON m.seq = r.seq
  WHERE r.destination = :destination::text AND r.state = 'handed over'
    AND r.locked_until < now() + :soon::float * interval '1 second'
    AND r.locked_until < least(r.handed_at, now()) + :within * 8 * interval '1 second'
    AND coalesce(:schema.outbox_task_queue(m.headers), :made::text) = :queue::text
  ORDER BY r.locked_until LIMIT :most::integer FOR UPDATE OF r SKIP LOCKED
), changed AS (
  UPDATE :schema.outbox_runs r SET locked_until = least(clock_timestamp() + :within * interval '1 second', found.longest)
  FROM found WHERE r.seq = found.seq RETURNING 1
)
SELECT count(*) FROM changed
