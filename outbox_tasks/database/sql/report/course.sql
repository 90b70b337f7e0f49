-- The sends of the last hours, in spans of time that each begin at a multiple of `width` seconds: destination; ago (how many
-- spans ago; 0: this one, which has not ended); sent and failed (how many). destination: null: all; spans: how many;
-- arrived, failures: the outcomes of a send that arrived, and of one that failed. Index: the primary key. It has the minute
-- first; of one destination only the index is read for the others.
WITH last AS (
  SELECT floor(date_part('epoch', now()) / :width::float) AS span
)
SELECT t.destination, (last.span - floor(date_part('epoch', t.minute) / :width))::integer AS ago,
       coalesce(sum(t.count) FILTER (WHERE t.outcome = ANY (:arrived::text[])), 0)::bigint AS sent,
       coalesce(sum(t.count) FILTER (WHERE t.outcome = ANY (:failures::text[])), 0)::bigint AS failed
FROM last CROSS JOIN LATERAL (SELECT to_timestamp((last.span - :spans::integer + 1) * :width) AS at) AS first
CROSS JOIN LATERAL (
  SELECT * FROM :schema.outbox_tallies t WHERE :destination::text IS NULL AND t.minute BETWEEN first.at AND now()
  UNION ALL
  SELECT * FROM :schema.outbox_tallies t WHERE t.destination = :destination AND t.minute BETWEEN first.at AND now()
) AS t
GROUP BY 1, 2
