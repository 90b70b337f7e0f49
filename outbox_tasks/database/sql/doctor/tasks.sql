-- The tasks among the newest messages: destination, task (its name; null: the relay makes it of an event), event (the type of
-- the message) and queue (null: that of the destination). asked: names of destinations; most: messages that are looked at.
SELECT m.destination, m.event_type AS event, substring(m.headers ->> 'celery-message' from '"task": "([^"]+)"') AS task,
       :schema.outbox_task_queue(m.headers) AS queue
FROM (SELECT * FROM :schema.outbox_messages ORDER BY seq DESC LIMIT :most::integer) AS m
WHERE m.destination = ANY (:asked::text[])
GROUP BY m.destination, m.event_type, task, queue
