-- Notes which leases are probes, if a claim may probe several destinations: each has a lease of its own.
-- probe: JSON rows of destination and token, in the order of the destinations; granted: the token of the claim.
UPDATE :schema.outbox_destinations d SET probe = p.token
FROM json_to_recordset(:probe::json) AS p(destination text, token uuid)
WHERE d.name = p.destination AND d.probe = :granted::uuid
