-- Makes dead letters of messages that a claim has just taken, in the same transaction.
-- message: JSON rows of seq, destination, key, code and error. A known last error stays if code is null. Returns seq, code and error.
WITH said AS (
  SELECT r.seq, r.destination, r.key, r.code, m.event_type,
         CASE WHEN r.code = 'too_old' THEN concat(r.error, '; the last error was: ', coalesce(t.error, 'none')) ELSE r.error END
           AS error
  FROM json_to_recordset(:message::json) AS r(seq bigint, destination text, key text, code text, error text)
  CROSS JOIN LATERAL (SELECT * FROM :schema.outbox_messages m WHERE m.seq = r.seq LIMIT 1) AS m
  LEFT JOIN LATERAL (SELECT * FROM :schema.outbox_trouble t WHERE t.seq = r.seq LIMIT 1) AS t ON true
), noted AS (
  INSERT INTO :schema.outbox_trouble AS t (seq, code, error, history)
  SELECT seq, coalesce(code, 'attempts_exhausted'), error,
         :schema.outbox_noted('[]', jsonb_build_object('at', clock_timestamp(), 'what', 'dead', 'code', code, 'error', left(error, 300)))
  FROM said
  ON CONFLICT (seq) DO UPDATE SET
    code = CASE WHEN excluded.error IS NULL THEN coalesce(t.code, excluded.code) ELSE excluded.code END,
    error = coalesce(excluded.error, t.error),
    history = :schema.outbox_noted(t.history, excluded.history -> 0)
  RETURNING t.seq, t.code, t.error
), freed AS (
  SELECT :schema.outbox_free(destination, array_agg(key)) FROM said WHERE key IS NOT NULL GROUP BY destination
), died AS (
  INSERT INTO :schema.outbox_dead (seq, destination, key, kin)
  SELECT said.seq, said.destination, said.key,
         :schema.outbox_error_group(said.destination, said.event_type, noted.code, noted.error)
  FROM said JOIN noted ON noted.seq = said.seq
)
SELECT seq, code, error FROM noted WHERE (SELECT count(*) FROM freed) >= 0  -- so that it is called
