-- The queues of the tasks that are handed over and do not run yet: destination, queue (null: its name is not in the
-- message), count (of those looked at, the first ones to be sent again), again (how many were), oldest (for how many seconds
-- the first has waited). asked: JSON rows of destination, and queue: that of tasks which were not stored as such.
SELECT a.destination, nullif(coalesce(r.queue, a.queue), '') AS queue, count(*) AS count,
       count(*) FILTER (WHERE r.unheard > 0) AS again, date_part('epoch', now() - min(r.handed_at)) AS oldest
FROM json_to_recordset(:asked::json) AS a(destination text, queue text)
CROSS JOIN LATERAL (
  SELECT r.unheard, r.handed_at, :schema.outbox_task_queue(m.headers) AS queue
  FROM (SELECT * FROM :schema.outbox_runs r WHERE r.destination = a.destination AND r.state = 'handed over'
        ORDER BY r.locked_until LIMIT 1000) AS r
  JOIN :schema.outbox_messages m ON m.seq = r.seq
) AS r
GROUP BY a.destination, nullif(coalesce(r.queue, a.queue), '')
