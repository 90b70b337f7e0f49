-- Locks what is not of this test, up to the number `since`, until the transaction ends: a claim passes over it.
WITH ready AS (
  SELECT seq FROM :schema.outbox_ready WHERE seq <= :since::bigint FOR UPDATE SKIP LOCKED
), held AS (
  SELECT seq FROM :schema.outbox_held WHERE seq <= :since FOR UPDATE SKIP LOCKED
), keys AS (
  SELECT k.key FROM :schema.outbox_keys k
  WHERE k.first <= :since AND EXISTS (SELECT FROM :schema.outbox_held h WHERE h.destination = k.destination AND h.key = k.key AND h.seq <= :since)
  FOR UPDATE SKIP LOCKED
), waiting AS (
  SELECT seq FROM :schema.outbox_waiting WHERE seq <= :since FOR UPDATE SKIP LOCKED
), runs AS (
  SELECT seq FROM :schema.outbox_runs WHERE seq <= :since FOR UPDATE SKIP LOCKED
), leases AS (
  SELECT token FROM :schema.outbox_leases WHERE seqs[1] <= :since FOR UPDATE SKIP LOCKED
)
SELECT (SELECT count(*) FROM ready) + (SELECT count(*) FROM held) + (SELECT count(*) FROM keys) + (SELECT count(*) FROM waiting)
     + (SELECT count(*) FROM runs) + (SELECT count(*) FROM leases)
