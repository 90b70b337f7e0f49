-- The tasks that are handed over and do not run yet: destination, task, count, and oldest (for how many seconds the first
-- has waited). most: how many are looked at, those first that were handed over first.
SELECT r.destination, m.event_type AS task, count(*) AS count, date_part('epoch', now() - min(r.handed_at)) AS oldest
FROM (SELECT * FROM :schema.outbox_runs WHERE state = 'handed over' ORDER BY destination, handed_at LIMIT :most::integer) AS r
JOIN :schema.outbox_messages m ON m.seq = r.seq
GROUP BY r.destination, m.event_type
