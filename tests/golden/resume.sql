WITH changed AS (
  DELETE FROM outbox_destinations
  WHERE outbox_destinations.name = %(target)s::VARCHAR
  RETURNING outbox_destinations.name
), audited AS (INSERT INTO outbox_audit (who, why, action, target, facts, closed_at) SELECT %(person)s::VARCHAR AS anon_1, %(reason)s::VARCHAR AS anon_2, 'resume', changed.name AS name, jsonb_strip_nulls(jsonb_build_object()) AS jsonb_strip_nulls_1, clock_timestamp() AS clock_timestamp_1 FROM changed RETURNING outbox_audit.seq)
SELECT changed.name
FROM changed;
