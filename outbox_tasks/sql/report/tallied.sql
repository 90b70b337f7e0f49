-- What was counted in this minute and in the last `minutes`: destination, outcome, counted, and minutes: the exact time that
-- the counts are of.
SELECT t.destination, t.outcome, sum(t.count)::bigint AS counted, date_part('epoch', now() - s.since) / 60 AS minutes
FROM (SELECT date_trunc('minute', now()) - :minutes::integer * interval '1 minute' AS since) AS s
JOIN :schema.outbox_tallies t ON t.minute >= s.since
GROUP BY t.destination, t.outcome, s.since
