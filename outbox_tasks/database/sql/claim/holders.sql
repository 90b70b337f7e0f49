-- The processes that have a lease or a drain's slot, and whose names begin with `place`.
SELECT DISTINCT holder FROM (
  SELECT holder FROM :schema.outbox_leases WHERE locked_until > now() UNION ALL SELECT holder FROM :schema.outbox_drains
) AS h WHERE starts_with(holder, :place::text)
