-- Leases acts that nobody runs; returns their entries. token (of the process), holder (its name), duration (seconds);
-- running: entries of those that it runs now; only: the acts that it may run (null: any); size: acts at most;
-- place: the schema (null: as the connection finds the tables). A replay is only for roles that may write messages.
UPDATE :schema.outbox_acts a
SET lease = :token::uuid, locked_by = :holder::text, locked_until = clock_timestamp() + :duration::float * interval '1 second'
FROM (SELECT o.act FROM :schema.outbox_acts o JOIN :schema.outbox_audit b ON b.seq = o.act
      WHERE (o.locked_until <= clock_timestamp() OR o.lease = :token) AND o.act <> ALL (:running::bigint[])
        AND (:only::bigint[] IS NULL OR o.act = ANY (:only))
        AND (b.action <> 'replay' OR has_table_privilege(concat_ws('.', quote_ident(:place::text), 'outbox_messages'), 'INSERT'))
      ORDER BY o.act LIMIT :size::integer FOR UPDATE OF o SKIP LOCKED) AS free
WHERE a.act = free.act RETURNING a.act AS entry
