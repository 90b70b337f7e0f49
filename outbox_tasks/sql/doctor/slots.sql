-- The replication slots that keep dead rows for a standby: name, active, age (for how many transactions).
SELECT slot_name AS name, active, age(xmin) AS age FROM pg_replication_slots WHERE xmin IS NOT NULL
