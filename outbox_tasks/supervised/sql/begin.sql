-- The compare-and-set before a task's body: the first copy to ask gets the run. Returns attempts, destination, key and
-- waited: seconds since it was handed over.
--
-- The task is handed over; or the relay is just sending it, and its worker was quicker than the relay's settle. A copy of
-- other content, from before a retry or an edit, does not begin.
-- id; token: the run's own; content: see parts/copy.sql; holder; hold: seconds that the run has to say that it still runs.
WITH message AS MATERIALIZED (
  SELECT m.seq, m.id, m.destination, m.key FROM :schema.outbox_messages m WHERE m.id = :id::uuid AND
  \ir parts/copy.sql
), begun AS (
  UPDATE :schema.outbox_runs r
  SET state = 'running', token = :token::uuid, holder = :holder::text, unheard = 0,
      locked_until = clock_timestamp() + :hold::float * interval '1 second'
  FROM message m
  WHERE r.seq = m.seq AND r.state = 'handed over' AND set_config('synchronous_commit', 'off', true) = 'off'
  RETURNING r.seq, r.attempts, r.destination, r.key, r.handed_at
), lease AS MATERIALIZED (
  SELECT l.token, l.seqs, m.* FROM message m JOIN :schema.outbox_leases l
    ON l.destination = m.destination AND l.begun_at IS NOT NULL AND l.seqs @> ARRAY[m.seq]
  WHERE NOT EXISTS (SELECT FROM begun) AND set_config('synchronous_commit', 'off', true) = 'off'
  FOR UPDATE OF l
), shortened AS (
  UPDATE :schema.outbox_leases l SET seqs = array_remove(l.seqs, lease.seq)
  FROM lease WHERE l.token = lease.token AND cardinality(lease.seqs) > 1
), ended AS (
  DELETE FROM :schema.outbox_leases l USING lease WHERE l.token = lease.token AND cardinality(lease.seqs) = 1
), quick AS (
  INSERT INTO :schema.outbox_runs (seq, state, token, holder, locked_until, attempts, id, destination, key)
  SELECT lease.seq, 'running', :token, :holder, clock_timestamp() + :hold * interval '1 second',
         coalesce(t.attempts, 0) + 1, lease.id, lease.destination, lease.key
  FROM lease LEFT JOIN :schema.outbox_trouble t ON t.seq = lease.seq
  RETURNING seq, attempts, destination, key, handed_at
), longer AS (  -- as deliver/settle.sql does
  UPDATE :schema.outbox_keys k SET more = true FROM lease
  WHERE k.destination = lease.destination AND k.key = lease.key AND k.token = lease.token
), heard AS (
  UPDATE :schema.outbox_trouble t SET unheard = 0, outages = 0
  FROM (SELECT seq FROM begun UNION ALL SELECT seq FROM quick) AS b
  WHERE t.seq = b.seq
)
SELECT attempts::integer, destination, key, date_part('epoch', clock_timestamp() - handed_at) AS waited
FROM (SELECT * FROM begun UNION ALL SELECT * FROM quick) AS b
