-- Deletes counts and workers of yesterday, slots of drains that were killed, and the audit of more than a year ago. acts: seconds
-- for which that is kept.
WITH tallies AS (
  DELETE FROM :schema.outbox_tallies WHERE minute < now() - interval '1 day'
), workers AS (
  DELETE FROM :schema.outbox_heartbeats WHERE kind IN ('worker', 'tasks') AND seen_at < now() - interval '1 day'
), drains AS (
  DELETE FROM :schema.outbox_drains WHERE until < now() - interval '1 day'
)
DELETE FROM :schema.outbox_audit WHERE at < now() - :acts::float * interval '1 second'
