-- Whether the relay has noticed another timeline in the last `fresh` seconds: the timeline, the one `before`, and since when it has
-- `changed`. See report/timeline.sql.
SELECT h.facts ->> 'timeline' AS timeline, h.facts ->> 'before' AS before, (h.facts ->> 'changed')::timestamptz AS changed
FROM :schema.outbox_heartbeats h
WHERE h.name = 'server' AND (h.facts ->> 'changed')::timestamptz > now() - :fresh::float * interval '1 second'
