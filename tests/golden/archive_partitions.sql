SELECT pg_catalog.pg_class.relname AS name, pg_catalog.pg_inherits.inhparent IS NOT NULL AS attached, CAST((regexp_match(pg_get_expr(pg_catalog.pg_class.relpartbound, pg_catalog.pg_class.oid), %(regexp_match_1)s::VARCHAR))[%(regexp_match_2)s::INTEGER] AS TIMESTAMP WITH TIME ZONE) AS since, CAST((regexp_match(pg_get_expr(pg_catalog.pg_class.relpartbound, pg_catalog.pg_class.oid), %(regexp_match_1)s::VARCHAR))[%(regexp_match_3)s::INTEGER] AS TIMESTAMP WITH TIME ZONE) AS until, pg_relation_size(pg_catalog.pg_class.oid) / CAST(current_setting(%(current_setting_1)s::VARCHAR) AS BIGINT) AS pages, pg_total_relation_size(pg_catalog.pg_class.oid) AS bytes, clock_timestamp() AS now
FROM pg_catalog.pg_class AS archive
JOIN pg_catalog.pg_class ON pg_catalog.pg_class.relnamespace = archive.relnamespace LEFT OUTER
JOIN pg_catalog.pg_inherits ON pg_catalog.pg_inherits.inhrelid = pg_catalog.pg_class.oid
  AND pg_catalog.pg_inherits.inhparent = archive.oid
WHERE archive.oid = CAST(%(param_1)s AS REGCLASS)
  AND (pg_catalog.pg_inherits.inhparent IS NOT NULL OR pg_catalog.pg_class.relname ~ %(relname_1)s::VARCHAR)
ORDER BY pg_catalog.pg_class.relname;
-- current_setting_1 = 'block_size'
-- param_1 = 'outbox_archive'
-- regexp_match_1 = "^FOR VALUES FROM \\('(.*)'\\) TO \\('(.*)'\\)$"
-- regexp_match_2 = 1
-- regexp_match_3 = 2
-- relname_1 = '^(outbox_archive_\\d{8}|outbox_archive_gone_\\d{8}|outbox_archive_rest_\\d{20})$'
