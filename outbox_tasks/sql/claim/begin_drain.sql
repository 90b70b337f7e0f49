-- A drain begins, if it still has its slot. destination; token; holder; hold: seconds. Returns the number of its slot if it may.
UPDATE :schema.outbox_drains SET holder = :holder::text, until = clock_timestamp() + :hold::float * interval '1 second'
WHERE destination = :destination::text AND token = :token::uuid AND holder IS NULL
  AND set_config('synchronous_commit', 'off', true) = 'off'
RETURNING slot
