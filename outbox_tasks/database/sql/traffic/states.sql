-- The destinations that were in trouble or were paused, and their state now.
SELECT d.name,
       CASE WHEN d.paused_at IS NOT NULL THEN 'paused'
            WHEN d.opened_at IS NOT NULL AND d.pause_until > now() AND d.probe IS NULL THEN 'open'
            WHEN d.opened_at IS NOT NULL THEN 'trying'
            ELSE 'closed' END AS state,
       d.failures, d.error_code, d.error, d.failed_at, d.opened_at, d.pause_until, d.recovered_at, d.paused_at,
       coalesce(d.paused_by, 'somebody') AS paused_by, d.paused_why,
       date_part('epoch', now()) - date_part('epoch', d.opened_at) AS open_for,
       date_part('epoch', now()) - date_part('epoch', d.paused_at) AS paused_for,
       date_part('epoch', d.pause_until) - date_part('epoch', now()) AS next_try
FROM :schema.outbox_destinations d ORDER BY d.name
