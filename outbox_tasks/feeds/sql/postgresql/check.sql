-- Whether this server is a replica, and whether row-level security may hide rows of the feed from our role.
SELECT pg_is_in_recovery(), row_security_active($n$:schema.outbox_feed$n$)
