SELECT outbox_tallies.destination, outbox_tallies.outcome, CAST(sum(outbox_tallies.count) AS BIGINT) AS counted, CAST(EXTRACT(epoch FROM now() - (date_trunc('minute', now()) - %(minutes)s::INTEGER * %(param_1)s::INTEGER * interval '1 second')) / CAST(%(param_2)s::INTEGER AS NUMERIC) AS FLOAT) AS minutes
FROM outbox_tallies
WHERE outbox_tallies.minute >= date_trunc('minute', now()) - %(minutes)s::INTEGER * %(param_1)s::INTEGER * interval '1 second' GROUP BY outbox_tallies.destination, outbox_tallies.outcome;
-- param_1 = 60
-- param_2 = 60
