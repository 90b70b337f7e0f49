-- Of these destinations, those of which nobody else claims messages with keys, until this transaction ends. One claim at
-- a time is enough: it takes milliseconds. place: where the lock is one of this outbox; destinations: JSON texts.
SELECT value AS destination FROM json_array_elements_text(:destinations::json)
WHERE pg_try_advisory_xact_lock(hashtextextended(:place::text || ' keys ' || value, 0))
