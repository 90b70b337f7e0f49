-- The highest number, also of rows that are not committed: run it at READ UNCOMMITTED, before all.sql.
SELECT max(number) FROM :schema.outbox_feed
