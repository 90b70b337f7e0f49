-- Removes the heartbeat of a worker that stops. name; started: a new worker may have the name already.
DELETE FROM :schema.outbox_heartbeats WHERE name = :name::text AND facts ->> 'started' = :started::text
