-- Puts aside what `look_keys.sql` has locked, in the same transaction, and what does not go: behind a busy key it is held;
-- what is not due yet waits.
--
-- behind: where the ready rows are that are held now; marked: which of these, by number, a claim should look at. ready,
-- held: where the rows are that wait now.
WITH behind AS (
  DELETE FROM :schema.outbox_ready r WHERE r.ctid = ANY (:behind::tid[]) RETURNING r.*
), early AS (
  DELETE FROM :schema.outbox_ready r WHERE r.ctid = ANY (:ready::tid[]) RETURNING r.*
), early_held AS (
  DELETE FROM :schema.outbox_held h WHERE h.ctid = ANY (:held::tid[]) RETURNING h.*
), waiting AS (
  INSERT INTO :schema.outbox_waiting (seq, due, since, size, attempts, priority, alone, latest, destination, key)
  SELECT seq, since, since, size, attempts, priority, alone, latest, destination, key FROM early
  UNION ALL
  SELECT seq, since, since, size, attempts, priority, alone, latest, destination, key FROM early_held
)
INSERT INTO :schema.outbox_held (destination, key, seq, since, size, attempts, priority, alone, latest, free)
SELECT destination, key, seq, since, size, attempts, priority, alone, latest, seq = ANY (:marked::bigint[]) FROM behind
