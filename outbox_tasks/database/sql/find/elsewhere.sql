-- What else may be the case with a message that is not here: since (when the oldest day that is kept began) and schemas (of other
-- outboxes in this database).
SELECT (SELECT min(d.began_at) FROM :schema.outbox_days d WHERE d.gone_at IS NULL) AS since,
       ARRAY(SELECT n.nspname::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
             WHERE c.relname = 'outbox_messages' AND c.relkind = 'p'
               AND n.oid <> (SELECT s.relnamespace FROM pg_class s WHERE s.oid = (SELECT tableoid FROM :schema.outbox_seq))
             ORDER BY n.nspname) AS schemas
