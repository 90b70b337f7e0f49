-- The transactions that have written messages with keys to our tables: each holds an advisory lock for a key, or one for all
-- keys (see outbox_ordered). Needs `ours`.
SELECT max(l.pid) AS pid, array_agg(l.transactionid::text) AS transactions,
       count(DISTINCT l.classid::bigint >> 8) FILTER (WHERE l.locktype = 'advisory') AS keys,
       bool_or(l.classid::bigint >> 8 = :schema.outbox_all_keys()) FILTER (WHERE l.locktype = 'advisory') AS all_keys
FROM pg_locks l
WHERE l.locktype IN ('transactionid', 'relation') OR (l.locktype = 'advisory' AND l.objsubid = 1 AND l.mode = 'ShareLock')
GROUP BY l.virtualtransaction
HAVING bool_or(l.mode = 'RowExclusiveLock' AND l.relation = (SELECT oid FROM ours WHERE relname = 'outbox_ready'))
   AND bool_or(l.locktype = 'advisory')
