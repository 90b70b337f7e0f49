-- Begins an act that goes on in the background; returns its entry in the audit, or nothing if an act with this token has begun
-- before. person, reason, action, target, facts (JSON), token: of the entry; chosen (JSON): which messages; moment: only those
-- that were there, or dead, by then, at the latest now; pace: messages a second, limit: messages at most (null: all); expected: how many there are.
WITH entry AS (
  INSERT INTO :schema.outbox_audit (who, why, action, target, count, facts, once)
  VALUES (:person::text, :reason::text, :action::text, :target::text, 0, :facts::text::jsonb, :token::uuid)
  ON CONFLICT (once) DO NOTHING RETURNING seq
)
INSERT INTO :schema.outbox_acts (act, wanted, as_of, rate, most, total)
SELECT seq, :chosen::text::jsonb, least(:moment::timestamptz, clock_timestamp()), :pace::float, :limit::bigint, :expected::bigint
FROM entry RETURNING act AS entry
