SELECT outbox_destinations.name, CASE
    WHEN (outbox_destinations.paused_at IS NOT NULL) THEN %(param_1)s::VARCHAR
    WHEN (outbox_destinations.opened_at IS NOT NULL AND outbox_destinations.pause_until > now() AND outbox_destinations.probe IS NULL) THEN %(param_2)s::VARCHAR
    WHEN (outbox_destinations.opened_at IS NOT NULL) THEN %(param_3)s::VARCHAR
    ELSE %(param_4)s::VARCHAR END AS state, outbox_destinations.failures, outbox_destinations.error_code, outbox_destinations.error, outbox_destinations.failed_at, outbox_destinations.opened_at, outbox_destinations.pause_until, outbox_destinations.recovered_at, outbox_destinations.paused_at, outbox_destinations.paused_by, outbox_destinations.paused_why, greatest(least(date_part('epoch', now()) - date_part('epoch', outbox_destinations.opened_at), 1e10), -1e10) AS open_for, greatest(least(date_part('epoch', outbox_destinations.pause_until) - date_part('epoch', now()), 1e10), -1e10) AS next_try
FROM outbox_destinations
ORDER BY outbox_destinations.name;
-- param_1 = 'paused'
-- param_2 = 'open'
-- param_3 = 'trying'
-- param_4 = 'closed'
