-- The broker of a destination has lost the tasks that were handed over more than `age` seconds ago: they are due now.
-- Returns how many. most: of them.
WITH found AS (
  SELECT seq FROM :schema.outbox_runs
  WHERE destination = :name::text AND state = 'handed over' AND locked_until > now()
    AND handed_at < now() - :age::float * interval '1 second'
  ORDER BY locked_until LIMIT :most::integer FOR UPDATE SKIP LOCKED
), changed AS (
  UPDATE :schema.outbox_runs r SET locked_until = clock_timestamp() FROM found WHERE r.seq = found.seq RETURNING 1
)
SELECT count(*) FROM changed
