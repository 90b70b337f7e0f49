-- Ends the leases of runs whose workers are gone: the next claim takes them back. One that is just being ended is left.
-- Returns their ids. run: JSON rows of id and token.
WITH free AS (
  SELECT r.seq FROM json_to_recordset(:run::json) AS said(id uuid, token uuid)
  JOIN :schema.outbox_runs r ON r.id = said.id AND r.token = said.token FOR UPDATE OF r SKIP LOCKED
)
UPDATE :schema.outbox_runs r SET locked_until = clock_timestamp()
FROM free WHERE r.seq = free.seq AND set_config('synchronous_commit', 'off', true) = 'off'
RETURNING r.id::text
