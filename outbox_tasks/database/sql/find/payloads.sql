-- Of some messages, those whose payload has a text: their ids, the latest first; and a row without an id: how many were looked at
-- (looked), and where this ended: the lowest number (seq), and when that message was written (at).
--
-- text; part: the bytes of a payload that are looked at; seqs: these messages (null: the next `look` ones before the number `last`);
-- size: how many ids are wanted. Index: the primary keys of outbox_messages.
WITH seen AS MATERIALIZED (
  SELECT m.seq, m.id, m.created_at, position(convert_to(:text::text, 'UTF8') IN substr(m.payload, 1, :part::integer)) > 0 AS has
  FROM unnest(:seqs::bigint[]) AS s CROSS JOIN LATERAL (SELECT * FROM :schema.outbox_messages m WHERE m.seq = s LIMIT 1) AS m
  UNION ALL
  (SELECT m.seq, m.id, m.created_at, position(convert_to(:text::text, 'UTF8') IN substr(m.payload, 1, :part::integer)) > 0
   FROM :schema.outbox_messages m
   WHERE :seqs::bigint[] IS NULL AND m.seq < :last::bigint ORDER BY m.seq DESC LIMIT :look::integer)
)
(SELECT id, NULL::bigint AS looked, seq, NULL::timestamptz AS at FROM seen WHERE has ORDER BY seq DESC LIMIT :size::integer)
UNION ALL
SELECT NULL, count(*), min(seq), (SELECT s.created_at FROM seen s ORDER BY s.seq LIMIT 1) FROM seen
