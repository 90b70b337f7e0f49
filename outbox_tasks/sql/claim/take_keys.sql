-- Takes messages with keys that `look_keys.sql` has locked, in the same transaction: they are gone from ready and held.
-- `lease.sql`, in the same transaction, leases them. ready, held: where they are.
WITH taken AS (
  DELETE FROM :schema.outbox_ready r WHERE r.ctid = ANY (:ready::tid[]) RETURNING r.seq
), freed AS (
  DELETE FROM :schema.outbox_held h WHERE h.ctid = ANY (:held::tid[]) RETURNING h.seq
)
SELECT m.seq, m.id::text, m.event_type
FROM (SELECT seq FROM taken UNION ALL SELECT seq FROM freed) AS gone
CROSS JOIN LATERAL (SELECT * FROM :schema.outbox_messages m WHERE m.seq = gone.seq LIMIT 1) AS m
