-- Frees the slot of a drain that has ended. destination; token.
DELETE FROM :schema.outbox_drains WHERE destination = :destination::text AND token = :token::uuid
  AND set_config('synchronous_commit', 'off', true) = 'off'
