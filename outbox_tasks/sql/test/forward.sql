-- Lets time pass for messages of a test: what waits or is leased is due so much sooner. since: only those with a higher
-- number; only: ids (null: all); but: ids to leave out; seconds. What is due is only older then; it may be locked.
WITH ours AS MATERIALIZED (
  SELECT seq FROM :schema.outbox_messages
  WHERE seq > :since::bigint AND (:only::uuid[] IS NULL OR id = ANY (:only)) AND id <> ALL (:but::uuid[])
), waiting AS (
  UPDATE :schema.outbox_waiting w SET due = w.due - :seconds::float * interval '1 second' FROM ours WHERE w.seq = ours.seq
), ready AS (
  UPDATE :schema.outbox_ready r SET since = r.since - :seconds * interval '1 second'
  WHERE r.seq IN (SELECT r.seq FROM :schema.outbox_ready r JOIN ours ON ours.seq = r.seq FOR UPDATE OF r SKIP LOCKED)
), held AS (
  UPDATE :schema.outbox_held h SET since = h.since - :seconds * interval '1 second'
  WHERE h.seq IN (SELECT h.seq FROM :schema.outbox_held h JOIN ours ON ours.seq = h.seq FOR UPDATE OF h SKIP LOCKED)
), keys AS (
  UPDATE :schema.outbox_keys k SET due = k.due - :seconds * interval '1 second'
  WHERE k.token IS NULL AND k.due > now() AND k.due < 'infinity' AND EXISTS (
    SELECT FROM :schema.outbox_held h JOIN ours ON ours.seq = h.seq WHERE h.destination = k.destination AND h.key = k.key)
), runs AS (
  UPDATE :schema.outbox_runs r SET locked_until = r.locked_until - :seconds * interval '1 second'
  FROM ours WHERE r.seq = ours.seq
)
UPDATE :schema.outbox_leases l SET locked_until = l.locked_until - :seconds * interval '1 second'
WHERE l.seqs && ARRAY(SELECT seq FROM ours)
