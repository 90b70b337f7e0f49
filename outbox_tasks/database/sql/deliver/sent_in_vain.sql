-- Notes on messages that they may arrive twice: this holder sent them, and lost their lease before it settled them. A message that
-- has an error keeps it. message: JSON rows of seq and attempt; holder; tried_before: whether an earlier try to settle them, whose
-- answer did not arrive, may have done it: messages that this holder has in the journal get no note then.
INSERT INTO :schema.outbox_trouble AS t (seq, attempts, code, error, history)
SELECT r.seq, 0, 'unsettled', unsettled.error,
       :schema.outbox_noted('[]', jsonb_build_object('at', clock_timestamp(), 'what', 'sent in vain', 'attempt', r.attempt,
                                                     'code', 'unsettled', 'by', :holder::text))
FROM json_to_recordset(:message::json) AS r(seq bigint, attempt integer)
CROSS JOIN LATERAL (SELECT format('attempt %s was begun by %s and never settled: it died or lost its lease; the message'
                                  ' may have been delivered', r.attempt, :holder::text) AS error) AS unsettled
WHERE NOT :tried_before::boolean OR NOT EXISTS (SELECT FROM :schema.outbox_journal j WHERE j.seqs @> r.seq AND j.holder = :holder::text)
ON CONFLICT (seq) DO UPDATE SET
  code = coalesce(t.code, excluded.code), error = coalesce(t.error, excluded.error),
  history = :schema.outbox_noted(t.history, excluded.history -> 0)
