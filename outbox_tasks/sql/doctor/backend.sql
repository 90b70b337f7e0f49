-- The server process that answers, and how many prepared statements of psycopg it keeps.
SELECT pg_backend_pid() AS pid, (SELECT count(*) FROM pg_prepared_statements WHERE name LIKE '\_pg3\_%') AS kept
