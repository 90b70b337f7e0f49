-- What is shown of an entry of the audit `b`: no former payload, no ids, no digest of a form. Somebody who writes an entry by hand may
-- have put there what is no object.
b.seq, b.at, b.who, b.why, b.action, b.target, b.count,
CASE WHEN jsonb_typeof(b.facts) = 'object' THEN b.facts ELSE '{}' END - 'former'::text - 'changed'::text - 'form'::text AS facts
