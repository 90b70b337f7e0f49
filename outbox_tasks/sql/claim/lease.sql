-- Leases bundles of messages that this transaction has taken. Nothing is sent before this is committed.
--
-- bundle: JSON rows of token, destination, seqs and keys. holder; hold: seconds.
INSERT INTO :schema.outbox_leases (token, locked_until, destination, holder, seqs, keys)
SELECT b.token, clock.now + :hold::float * interval '1 second', b.destination, :holder::text, b.seqs, b.keys
FROM json_to_recordset(:bundle::json) AS b(token uuid, destination text, seqs bigint[], keys text[]),
     (SELECT clock_timestamp() AS now) AS clock
