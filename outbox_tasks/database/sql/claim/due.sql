-- The destinations of which something is due, and how much of each kind, counted up to `most`:
--   keyless  messages without a key
--   alone    messages that are sent by themselves
--   new      new messages with a key
--   held     held messages whose key is free
-- And what else a claim needs to know: drains (how many slots are taken), shut (it is paused, or its circuit is open), probe (its
-- circuit is open, and a message may try it now). The cost grows with the destinations of which something is due, not with all that
-- are configured.
--
-- known: JSON rows of the destinations that this process has served lately: destination; start and free_since, as outbox_take_new
-- and outbox_take_held have them; span, as take_keyless.sql has it. Up to `others` other destinations are looked for, after the name
-- `past` and between the known names. So the rows of known destinations that are gone, and that an old snapshot keeps, are not read again.
WITH RECURSIVE known AS MATERIALIZED (
  SELECT * FROM json_to_recordset(:known::json) AS k(destination text, start bigint, free_since timestamptz, span json)
), gap AS (
  SELECT name AS low, lead(name) OVER (ORDER BY name) AS high FROM (SELECT destination AS name FROM known UNION SELECT '') AS n
), other AS (
  SELECT NULL::text AS name, greatest(low, :past::text) AS low, high FROM gap WHERE high IS NULL OR high > :past::text
  UNION ALL
  SELECT next.name, next.name, other.high
  FROM other CROSS JOIN LATERAL (SELECT :schema.outbox_next_destination(other.low, other.high) AS name) AS next
  WHERE next.name IS NOT NULL
), place AS MATERIALIZED (
  SELECT destination, start, free_since, span, true AS known FROM known
  UNION ALL
  (SELECT name, 0, '-infinity', s.span, false
   FROM other CROSS JOIN (SELECT json_agg(json_build_object('priority', n, 'xid', '0', 'seq', 0, 'until', '9223372036854775807')) AS span
                          FROM generate_series(-1, 1) AS n) AS s
   WHERE name IS NOT NULL LIMIT :others::integer)
), writers AS MATERIALIZED (SELECT * FROM :schema.outbox_open_writers())
SELECT p.destination, p.known, keyless.count AS keyless, alone.count AS alone, new.count AS new, held.count AS held,
       (SELECT count(*) FROM :schema.outbox_drains d WHERE d.destination = p.destination AND d.until > now()) AS drains,
       coalesce(d.paused_at IS NOT NULL OR d.opened_at IS NOT NULL, false) AS shut,
       coalesce(d.paused_at IS NULL AND d.opened_at IS NOT NULL AND d.pause_until <= now(), false) AS probe
FROM place p
LEFT JOIN :schema.outbox_destinations d ON d.name = p.destination
CROSS JOIN LATERAL (SELECT count(*) FROM (
  SELECT FROM json_to_recordset(p.span) AS span(priority smallint, xid xid8, seq bigint, until xid8) CROSS JOIN LATERAL (
    SELECT FROM :schema.outbox_ready r
    WHERE r.destination = p.destination AND r.priority = span.priority AND r.key IS NULL AND NOT r.alone
      AND (r.xid, r.seq) > (span.xid, span.seq) AND r.xid <= span.until LIMIT :most::integer) AS r
  LIMIT :most) AS r) AS keyless
CROSS JOIN LATERAL (SELECT count(*) FROM (
  SELECT FROM :schema.outbox_ready r WHERE r.alone AND r.destination = p.destination LIMIT :most) AS r) AS alone
CROSS JOIN LATERAL (SELECT count(*) FROM (
  SELECT FROM :schema.outbox_ready r CROSS JOIN writers w
  WHERE r.destination = p.destination AND r.key IS NOT NULL AND r.seq >= p.start AND r.seq <= w.high
    AND (w.floors IS NULL OR :schema.outbox_comes_next(r.destination, r.key, r.seq, w.classes, w.floors)) LIMIT :most) AS r) AS new
CROSS JOIN LATERAL (SELECT count(*) FROM (  -- a key of which nothing is held counts, too: a take removes its row
  SELECT FROM (
    SELECT k.key, k.first FROM :schema.outbox_keys k
    WHERE k.destination = p.destination AND k.token IS NULL AND k.due = '-infinity'
    UNION ALL
    SELECT k.key, k.first FROM :schema.outbox_keys k
    WHERE k.destination = p.destination AND k.token IS NULL AND k.due <= now() AND k.due >= p.free_since AND k.due > '-infinity'
    LIMIT :most) AS k
  LEFT JOIN LATERAL (
    SELECT FROM :schema.outbox_held h
    WHERE h.destination = p.destination AND h.key = k.key AND h.seq >= k.first LIMIT :most) AS h ON true
  LIMIT :most) AS k) AS held
WHERE keyless.count + alone.count + new.count + held.count > 0 OR NOT p.known
