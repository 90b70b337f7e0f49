-- Puts the messages of the CTE `back` where the next take or wake finds them: to held if they have a key, else to waiting if they are
-- due later, else to ready. back has: seq, due, since (when the message was due first), attempts, alone, destination, key, priority,
-- size. The statement that includes this frees the keys.
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
