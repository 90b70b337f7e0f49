-- Leases acts that nobody runs; returns their entries. token (of the process), holder (its name), duration (seconds);
-- running: entries of those that it runs now; only: the acts that it may run (null: any); size: acts at most.
UPDATE :schema.outbox_acts a
SET lease = :token::uuid, locked_by = :holder::text, locked_until = clock_timestamp() + :duration::float * interval '1 second'
FROM (SELECT act FROM :schema.outbox_acts
      WHERE (locked_until <= clock_timestamp() OR lease = :token) AND act <> ALL (:running::bigint[])
        AND (:only::bigint[] IS NULL OR act = ANY (:only))
      ORDER BY act LIMIT :size::integer FOR UPDATE SKIP LOCKED) AS free
WHERE a.act = free.act RETURNING a.act AS entry
