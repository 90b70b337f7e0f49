-- Whether this server is a replica.
SELECT pg_is_in_recovery()
