-- Deletes the alerts that have long been over. keep: seconds.
DELETE FROM :schema.outbox_alerts WHERE over_at < now() - :keep::float * interval '1 second'
