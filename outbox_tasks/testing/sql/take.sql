-- Takes the next message of a test singly, whatever other tests have left under its key. Messages of others stay as they are.
--
-- since: the last number before the test; past: the last number that this drain has looked at; token, holder, hold (seconds): of the
-- lease. Returns the message's number and destination, or nothing. These are passed over: a message whose time has not come, or whose
-- destination is paused; one that stands behind another message of this test with the same key, which waits or is a dead letter that
-- blocks.
WITH place AS MATERIALIZED (
  SELECT p.seq, p.destination, m.key, p.due
  FROM (
    SELECT seq, destination, since AS due FROM :schema.outbox_ready WHERE seq > :since::bigint
    UNION ALL SELECT seq, destination, since FROM :schema.outbox_held WHERE seq > :since
    UNION ALL SELECT seq, destination, due FROM :schema.outbox_waiting WHERE seq > :since) AS p
  JOIN :schema.outbox_messages m ON m.seq = p.seq
), next AS MATERIALIZED (
  SELECT p.* FROM place p
  WHERE p.seq > :past::bigint AND p.due <= now()
    AND NOT :schema.outbox_is_shut(p.destination)
    AND NOT EXISTS (SELECT FROM place b WHERE b.destination = p.destination AND b.key = p.key AND b.seq < p.seq)
    AND NOT EXISTS (SELECT FROM :schema.outbox_keys k WHERE k.destination = p.destination AND k.key = p.key
                      AND k.first > :since AND k.due > now())
  ORDER BY p.seq LIMIT 1
), taken AS (
  DELETE FROM :schema.outbox_ready r USING next WHERE r.seq = next.seq
), taken_held AS (
  DELETE FROM :schema.outbox_held h USING next WHERE h.seq = next.seq
), taken_waiting AS (
  DELETE FROM :schema.outbox_waiting w USING next WHERE w.seq = next.seq
), keyed AS (
  INSERT INTO :schema.outbox_keys AS k (destination, key, token, due, first)
  SELECT destination, key, :token::uuid, 'infinity', seq FROM next WHERE key IS NOT NULL
  ON CONFLICT (destination, key) DO UPDATE SET token = excluded.token, due = excluded.due WHERE k.first > :since
)
INSERT INTO :schema.outbox_leases (token, locked_until, destination, holder, seqs)
SELECT :token, clock_timestamp() + :hold::float * interval '1 second', destination, :holder::text, ARRAY[seq] FROM next
RETURNING seqs[1] AS seq, destination
