-- Notes on messages why they may have arrived twice: this holder sent them and could not settle them. Messages that name
-- a cause keep it; so do those that it settled itself, unless this is sure that it did not.
-- message: JSON rows of seq and attempt; holder; sure.
INSERT INTO :schema.outbox_trouble AS t (seq, attempts, code, error, history)
SELECT r.seq, 0, 'unsettled', unsettled.error,
       :schema.outbox_noted('[]', jsonb_build_object('at', clock_timestamp(), 'what', 'sent in vain', 'attempt', r.attempt,
                                                     'code', 'unsettled', 'by', :holder::text))
FROM json_to_recordset(:message::json) AS r(seq bigint, attempt integer)
CROSS JOIN LATERAL (SELECT format('attempt %s was begun by %s and never settled: it died or lost its lease; the message'
                                  ' may have been delivered', r.attempt, :holder::text) AS error) AS unsettled
WHERE :sure::boolean OR NOT EXISTS (SELECT FROM :schema.outbox_journal j WHERE j.seqs @> r.seq AND j.holder = :holder::text)
ON CONFLICT (seq) DO UPDATE SET
  code = coalesce(t.code, excluded.code), error = coalesce(t.error, excluded.error),
  history = :schema.outbox_noted(t.history, excluded.history -> 0)
