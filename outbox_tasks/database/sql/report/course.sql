-- The sends of the last hours, in spans of time that each begin at a multiple of `width` seconds: destination; ago (how many
-- spans ago; 0: this one, which has not ended); sent and failed (how many). destination: null: all; spans: how many;
-- arrived, failures: the outcomes of a send that arrived, and of one that failed.
SELECT t.destination, (floor(date_part('epoch', now()) / :width::float) - floor(date_part('epoch', t.minute) / :width))::integer AS ago,
       coalesce(sum(t.count) FILTER (WHERE t.outcome = ANY (:arrived::text[])), 0)::bigint AS sent,
       coalesce(sum(t.count) FILTER (WHERE t.outcome = ANY (:failures::text[])), 0)::bigint AS failed
FROM :schema.outbox_tallies t
WHERE t.minute >= to_timestamp((floor(date_part('epoch', now()) / :width) - :spans::integer + 1) * :width) AND t.minute <= now()
  AND (:destination::text IS NULL OR t.destination = :destination)
GROUP BY 1, 2
