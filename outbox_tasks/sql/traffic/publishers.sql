-- How many processes publish. recent: seconds for which a process counts.
SELECT count(*) AS count FROM :schema.outbox_publishers WHERE seen_at > now() - :recent::float * interval '1 second'
