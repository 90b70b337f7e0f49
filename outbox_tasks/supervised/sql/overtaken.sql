-- What the task at the front of a queue says about those that were handed over before it. Returns head (when it was
-- handed over; null if it says nothing, because an older copy of it may be in the queue) and count (how many that do not
-- run were handed over more than `sure` seconds before `last`, the head of an earlier look). No row, if the tasks have
-- priorities. destination; queue; made: the queue of tasks that were not stored as such; first: the id of the task.
SELECT (SELECT r.handed_at FROM :schema.outbox_runs r
        WHERE r.id = :first::uuid AND r.state = 'handed over' AND r.unheard = 0) AS head,
       count(*) FILTER (WHERE r.handed_at < :last::timestamptz - :sure::float * interval '1 second') AS count
FROM (SELECT * FROM :schema.outbox_runs r WHERE r.destination = :destination::text AND r.state = 'handed over'
      ORDER BY r.locked_until LIMIT 1000) AS r
JOIN :schema.outbox_messages m ON m.seq = r.seq
WHERE coalesce(:schema.outbox_task_queue(m.headers), :made::text) = :queue::text
HAVING count(*) FILTER (
  WHERE coalesce(:schema.outbox_envelope(m.headers ->> 'celery-message') ->> 'priority', '0') <> '0') = 0
