-- Whether this transaction is now the only one that does `what` in this outbox, until it ends (`ours`). If its connection is
-- lost silently, the server notices within a minute. place: the schema of the tables; null: the connection's.
SELECT pg_try_advisory_xact_lock(hashtextextended(concat('outbox ', :what::text, ' ', coalesce(:place::text, current_schema())), 0)) AS ours,
       ARRAY[set_config('tcp_keepalives_idle', '30', true), set_config('tcp_keepalives_interval', '10', true),
             set_config('tcp_keepalives_count', '3', true),
             -- From PostgreSQL 17 on, a role may have a time limit for transactions. This one must stay.
             (SELECT set_config(name, '0', true) FROM pg_settings WHERE name = 'transaction_timeout')] AS settings
