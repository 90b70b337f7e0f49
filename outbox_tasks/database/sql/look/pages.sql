-- How many pages the tables have whose messages are estimated: see sample.sql.
SELECT (sum(pg_relation_size(typrelid)) / current_setting('block_size')::bigint)::bigint AS pages FROM pg_type
WHERE oid IN (pg_typeof(CAST(NULL AS :schema.outbox_ready))::oid, pg_typeof(CAST(NULL AS :schema.outbox_held))::oid,
              pg_typeof(CAST(NULL AS :schema.outbox_waiting))::oid, pg_typeof(CAST(NULL AS :schema.outbox_dead))::oid)
