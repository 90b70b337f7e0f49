-- How the sends to each destination went lately: destination; sent and failed (in the last minute: the counts are by the minute,
-- so of the minute before this one a part counts); arrived_ago and failed_ago (seconds since the last one that arrived, and that
-- failed); refused (how many the destination has refused since one arrived).
-- arrived, failures: see tally.sql.
SELECT s.destination, date_part('epoch', now() - s.arrived_at) AS arrived_ago, date_part('epoch', now() - s.failed_at) AS failed_ago,
       s.refused, coalesce(t.sent, 0) AS sent, coalesce(t.failed, 0) AS failed
FROM :schema.outbox_sends s
LEFT JOIN LATERAL (
  SELECT sum(t.count * share) FILTER (WHERE t.outcome = ANY (:arrived::text[]))::float AS sent,
         sum(t.count * share) FILTER (WHERE t.outcome = ANY (:failures::text[]))::float AS failed
  FROM (VALUES (0, 1), (1, 1 - date_part('epoch', now() - date_trunc('minute', now())) / 60)) AS m(ago, share)
  JOIN :schema.outbox_tallies t ON t.minute = date_trunc('minute', now()) - m.ago * interval '1 minute'
  WHERE t.destination = s.destination
) AS t ON true
