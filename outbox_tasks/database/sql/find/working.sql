-- The numbers of messages that are at work or dead, `most` of each table at most: the dead ones first, then those that wait.
(SELECT seq FROM :schema.outbox_dead ORDER BY seq DESC LIMIT :most::integer)
UNION ALL (SELECT seq FROM :schema.outbox_waiting ORDER BY seq DESC LIMIT :most)
UNION ALL (SELECT seq FROM :schema.outbox_runs ORDER BY seq DESC LIMIT :most)
UNION ALL (SELECT s FROM :schema.outbox_leases CROSS JOIN LATERAL unnest(seqs) AS s LIMIT :most)
UNION ALL (SELECT seq FROM :schema.outbox_held ORDER BY destination, key, seq LIMIT :most)
UNION ALL (SELECT seq FROM :schema.outbox_ready LIMIT :most)
