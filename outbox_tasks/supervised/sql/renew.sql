-- Says that runs still run. Returns the tokens of those that were not given up, and whether each was renewed: a row that
-- somebody has locked is just being ended by its own run, and no run waits for another.
-- run: JSON rows of id, token and hold: seconds until it must be said again.
WITH ours AS MATERIALIZED (
  SELECT r.seq, r.token, said.hold
  FROM json_to_recordset(:run::json) AS said(id uuid, token uuid, hold float)
  JOIN :schema.outbox_runs r ON r.id = said.id AND r.token = said.token
), free AS MATERIALIZED (
  SELECT r.seq, ours.hold FROM ours JOIN :schema.outbox_runs r ON r.seq = ours.seq AND r.token = ours.token
  FOR UPDATE OF r SKIP LOCKED
), renewed AS (
  UPDATE :schema.outbox_runs r SET locked_until = clock_timestamp() + free.hold * interval '1 second'
  FROM free WHERE r.seq = free.seq AND set_config('synchronous_commit', 'off', true) = 'off'
  RETURNING r.token
)
SELECT ours.token::text, renewed.token IS NOT NULL AS renewed FROM ours LEFT JOIN renewed ON renewed.token = ours.token
