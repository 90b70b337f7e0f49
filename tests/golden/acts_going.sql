SELECT outbox_audit.seq, outbox_audit.at, outbox_audit.who, outbox_audit.why, outbox_audit.action, outbox_audit.target, outbox_audit.count, ((CASE WHEN (jsonb_typeof(outbox_audit.facts) = 'object') THEN outbox_audit.facts ELSE '{}'::jsonb END - CAST(%(param_1)s::VARCHAR AS TEXT)) - CAST(%(param_2)s::VARCHAR AS TEXT)) - CAST(%(param_3)s::VARCHAR AS TEXT) AS facts, outbox_acts.wanted, outbox_acts.as_of, outbox_acts.rate, outbox_acts.most, outbox_acts.total, outbox_acts.locked_by, outbox_acts.locked_until > clock_timestamp() AS held, greatest(least(date_part('epoch', clock_timestamp()) - date_part('epoch', outbox_audit.at), 1e10), -1e10) AS age
FROM outbox_audit
JOIN outbox_acts ON outbox_acts.act = outbox_audit.seq
ORDER BY outbox_acts.act
LIMIT %(size)s::INTEGER;
-- param_1 = 'former'
-- param_2 = 'changed'
-- param_3 = 'form'
