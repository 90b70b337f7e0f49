WITH audited AS (INSERT INTO outbox_audit (who, why, action, target, count, facts, once) VALUES (%(person)s::VARCHAR, %(reason)s::VARCHAR, %(action)s::VARCHAR, %(target)s::VARCHAR, %(param_1)s::BIGINT, %(facts)s::JSONB, %(token)s::UUID) ON CONFLICT (once) DO NOTHING RETURNING outbox_audit.seq)
INSERT INTO outbox_acts (act, wanted, as_of, rate, most, total)
SELECT audited.seq, %(chosen)s::JSONB AS anon_1, least(%(moment)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS least_1, CAST(%(pace)s AS FLOAT) AS anon_2, CAST(%(limit)s::BIGINT AS BIGINT) AS anon_3, CAST(%(expected)s::BIGINT AS BIGINT) AS anon_4
FROM audited
RETURNING outbox_acts.act AS entry;
-- param_1 = 0
