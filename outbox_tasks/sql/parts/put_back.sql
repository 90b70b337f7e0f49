-- Puts messages back where the next take or wake finds them. It needs the CTE `back` before it: seq, due, since (when it was due
-- first), attempts, alone, destination, key, priority, size. Its caller frees the keys.
to_waiting AS (
  INSERT INTO :schema.outbox_waiting (seq, due, since, attempts, alone, destination)
  SELECT seq, due, since, attempts, alone, destination FROM back WHERE key IS NULL AND due > now()
), to_ready AS (
  INSERT INTO :schema.outbox_ready (seq, since, size, attempts, priority, alone, destination)
  SELECT seq, since, size, attempts, priority, alone, destination FROM back WHERE key IS NULL AND due <= now()
), to_held AS (
  INSERT INTO :schema.outbox_held (destination, key, seq, since, size, attempts, alone)
  SELECT destination, key, seq, due, size, attempts, alone FROM back WHERE key IS NOT NULL
)
