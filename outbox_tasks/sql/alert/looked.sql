-- Notes up to when failed_runs.sql has been seen to. until.
UPDATE :schema.outbox_heartbeats SET facts = jsonb_build_object('upto', :until::timestamptz) WHERE name = 'alerts'
