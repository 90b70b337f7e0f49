-- Takes messages with keys singly, of several destinations: see outbox_take_held and outbox_take_new.
--
-- share: JSON rows of destination; held, new: how many messages of each kind; token: of a probe; start, life, free_since and blocks, as
-- the functions have them. holder, hold: of the leases. Returns the messages without their payloads; the rows without a number are those
-- of the functions.
WITH share AS MATERIALIZED (
  SELECT * FROM json_to_recordset(:share::json)
    AS s(destination text, held integer, new integer, token uuid, start bigint, life text, free_since timestamptz, blocks boolean)
)
SELECT s.destination, t.seq, t.id, t.event_type, t.attempts, t.lease::text AS token, NULL::bigint AS next_start, NULL AS life, t.all_before
FROM share s CROSS JOIN LATERAL :schema.outbox_take_held(
  s.destination, s.token, false, :holder::text, :hold::float, s.held, 1, 1::bigint << 62, s.free_since, s.blocks) AS t
WHERE s.held > 0
UNION ALL
SELECT s.destination, t.seq, t.id, t.event_type, t.attempts, t.lease::text, t.next_start, t.life, NULL
FROM share s CROSS JOIN LATERAL :schema.outbox_take_new(
  s.destination, s.token, false, :holder::text, :hold::float, s.new, 1, 1::bigint << 62, s.start, s.life, s.new) AS t
WHERE s.new > 0
