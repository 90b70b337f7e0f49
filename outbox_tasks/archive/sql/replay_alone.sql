-- Lets one replay write at a time, until its transaction ends: so no two write the same copy.
SELECT pg_advisory_xact_lock(hashtextextended('replay', :schema.outbox_all_keys()))
