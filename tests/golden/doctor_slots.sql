SELECT pg_catalog.pg_replication_slots.slot_name AS name, pg_catalog.pg_replication_slots.active, age(pg_catalog.pg_replication_slots.xmin) AS age
FROM pg_catalog.pg_replication_slots
WHERE pg_catalog.pg_replication_slots.xmin IS NOT NULL;
