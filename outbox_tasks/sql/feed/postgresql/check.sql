-- Whether this server is a replica, and the number of the feed's sequence.
SELECT pg_is_in_recovery(), tableoid::bigint FROM :schema.outbox_feed_number
