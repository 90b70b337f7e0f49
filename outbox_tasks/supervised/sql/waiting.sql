-- Of these destinations, those that have tasks which are handed over and do not run yet; and which outbox this is.
SELECT d.name AS destination, :schema.outbox_identity() AS outbox FROM unnest(:names::text[]) AS d(name)
WHERE EXISTS (SELECT FROM :schema.outbox_runs r WHERE r.destination = d.name AND r.state = 'handed over')
