-- Locks an act whose next batch is due until the transaction ends. Returns its entry; or none, and after how many seconds one of
-- our own is due (null: there are none).
--
-- own: entries of the acts that this process runs; overdue: after so many seconds it takes those of others; place: the schema
-- (null: as the connection finds the tables). A replay is only for roles that may write messages.
WITH due AS MATERIALIZED (
  SELECT a.act
  FROM :schema.outbox_acts a JOIN :schema.outbox_audit b ON b.seq = a.act
  WHERE a.due <= clock_timestamp()
      - CASE WHEN a.act = ANY (:own::bigint[]) THEN 0 ELSE :overdue::float END * interval '1 second'
    AND (b.action <> 'replay' OR has_table_privilege(concat_ws('.', quote_ident(:place::text), 'outbox_messages'), 'INSERT'))
  ORDER BY a.due LIMIT 1 FOR UPDATE OF a SKIP LOCKED
)
SELECT (SELECT act FROM due) AS entry,
       (SELECT date_part('epoch', min(o.due) - clock_timestamp()) FROM :schema.outbox_acts o
        WHERE o.act = ANY (:own::bigint[])) AS wait
