-- Notes on messages why they may have arrived twice: this holder sent them and could not settle them. Messages that name
-- a cause keep it; so do those that it settled itself, unless this is sure that it did not.
-- message: JSON rows of id and attempt; holder; sure.
INSERT INTO :schema.outbox_trouble AS t (seq, attempts, code, error, history)
SELECT m.seq, 0, 'unsettled', said.error,
       :schema.outbox_noted('[]', jsonb_build_object('at', clock_timestamp(), 'what', 'sent in vain', 'attempt', r.attempt,
                                                     'code', 'unsettled', 'by', :holder::text))
FROM (SELECT DISTINCT ON (id) * FROM json_to_recordset(:message::json) AS r(id uuid, attempt integer)) AS r
CROSS JOIN LATERAL (SELECT m.seq FROM :schema.outbox_messages m WHERE m.id = r.id OFFSET 0) AS m
CROSS JOIN LATERAL (SELECT format('attempt %s was begun by %s and never settled: it died or lost its lease; the message'
                                  ' may have been delivered', r.attempt, :holder::text) AS error) AS said
WHERE :sure::boolean OR NOT EXISTS (SELECT FROM :schema.outbox_journal j WHERE j.seqs @> m.seq AND j.holder = :holder::text)
ON CONFLICT (seq) DO UPDATE SET
  code = coalesce(t.code, excluded.code), error = coalesce(t.error, excluded.error),
  history = :schema.outbox_noted(t.history, excluded.history -> 0)
