-- The queues of the tasks that are handed over and do not run yet: destination, queue (null: its name is not in the
-- message), count (of those looked at, the first ones to be sent again), ending (how many of them would be sent again
-- within `soon` seconds), again (how many were), oldest (for how many seconds the first has waited), now, heard (whether a
-- worker that supervises serves the queue: it says that it begins a task, and others don't).
-- asked: JSON rows of destination, and queue: that of tasks which were not stored as such; soon; late: seconds after which a
-- heartbeat is too old.
SELECT f.*, EXISTS (SELECT FROM :schema.outbox_heartbeats h
                    WHERE h.kind = 'tasks' AND h.seen_at > f.now - :late::float * interval '1 second'
                      AND h.facts -> 'queues' @> to_jsonb(f.queue)) AS heard
FROM (
  SELECT a.destination, nullif(coalesce(r.queue, a.queue), '') AS queue, count(*) AS count,
         count(*) FILTER (WHERE r.locked_until < now() + :soon::float * interval '1 second') AS ending,
         count(*) FILTER (WHERE r.unheard > 0) AS again, date_part('epoch', now() - min(r.handed_at)) AS oldest, now() AS now
  FROM json_to_recordset(:asked::json) AS a(destination text, queue text)
  CROSS JOIN LATERAL (
    SELECT r.locked_until, r.unheard, r.handed_at, :schema.outbox_task_queue(m.headers) AS queue
    FROM (SELECT * FROM :schema.outbox_runs r WHERE r.destination = a.destination AND r.state = 'handed over'
          ORDER BY r.locked_until LIMIT 1000) AS r
    JOIN :schema.outbox_messages m ON m.seq = r.seq
  ) AS r
  GROUP BY a.destination, nullif(coalesce(r.queue, a.queue), '')
) AS f
