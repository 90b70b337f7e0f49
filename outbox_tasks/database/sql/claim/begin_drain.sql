-- Lets a drain begin that still has its slot, and gives it the slot for `hold` seconds. destination; token; holder. Returns the number
-- of the slot, or nothing: then another drain has it.
UPDATE :schema.outbox_drains SET holder = :holder::text, until = clock_timestamp() + :hold::float * interval '1 second'
WHERE destination = :destination::text AND token = :token::uuid AND holder IS NULL
  AND set_config('synchronous_commit', 'off', true) = 'off'
RETURNING slot
