-- Makes the entry of an act that is about to begin; returns its seq. person (who), reason (why), action, target, facts (JSON).
--
-- An act on many messages has one entry. Each batch adds its number in the transaction that changes the messages: so the entry
-- never says more than was done, even if the act is cut short.
INSERT INTO :schema.outbox_audit (who, why, action, target, count, facts)
VALUES (:person::text, :reason::text, :action::text, :target::text, 0, :facts::text::jsonb)
RETURNING seq
