-- A page of dead letters, in the order of their death: those beyond a place.
--
-- newer: to which side; time and last (seq): the place; kin (a group; null: any); look: how many to look at; size: how many
-- are wanted; until: the latest time of death (null: any); destination, event_type, key, code, older, newer_than, states:
-- see parts/wanted.sql. Returns the messages in this order, and a row without a seq: how many it looked at, and if that was
-- not all, where it ended (end_time, end_seq), and when that message was written (created_at).
-- Index: outbox_dead (destination, dead_at, seq) or (kin, dead_at, seq).
\ir parts/dead.sql
SELECT seq, id, destination, key, event_type, attempts, last_error_code, left(last_error, 300) AS last_error, created_at,
       state, dead_at, NULL::bigint AS looked, NULL::timestamptz AS end_time, NULL::bigint AS end_seq, place
FROM found
UNION ALL
SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
       (SELECT m.created_at FROM :schema.outbox_messages m WHERE m.seq = (SELECT s.seq FROM seen s WHERE s.place = :look::integer)),
       NULL, NULL, count(*),
       max(dead_at) FILTER (WHERE place = :look::integer), max(seq) FILTER (WHERE place = :look::integer), NULL
FROM seen
ORDER BY place
