SELECT pg_backend_pid() AS pid, (
  SELECT count(*) AS count_1
  FROM pg_catalog.pg_prepared_statements
  WHERE pg_catalog.pg_prepared_statements.name LIKE %(name_1)s::VARCHAR
) AS kept;
-- name_1 = '\\_pg3\\_%'
