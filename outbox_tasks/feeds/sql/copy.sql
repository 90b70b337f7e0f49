-- Writes what a bridge has read, but for what was copied before, and notes it. Returns the numbers that are written; no
-- row if another bridge has the lease by now.
--
-- row: JSON rows of number, id and messages: what `outbox_write` reads. hold: seconds for which the lease goes on.
-- One snapshot is enough: the token is ours, so whoever copied before us had committed when we took the lease.
WITH seen AS MATERIALIZED (
  SELECT * FROM json_to_recordset(:row::json) AS r(number bigint, id text, messages json)
), span AS MATERIALIZED (  -- int8range stores its upper end as the last number + 1, which the highest number has not
  SELECT int8range(least(min(number), top), least(max(number), top), '[]') AS seen
  FROM seen CROSS JOIN (VALUES (9223372036854775806)) AS highest(top) GROUP BY top
), known AS MATERIALIZED (
  SELECT k.number, k.id
  FROM :schema.outbox_copied c CROSS JOIN LATERAL unnest(c.numbers, c.ids) AS k(number, id)
  WHERE c.feed = :feed AND c.span && (SELECT span.seen FROM span)
), fresh AS MATERIALIZED (
  SELECT * FROM seen s WHERE NOT EXISTS (SELECT FROM known k WHERE k.number = s.number AND k.id = s.id)
), mine AS MATERIALIZED (
  UPDATE :schema.outbox_feeds f SET
    locked_until = clock_timestamp() + :hold::float * interval '1 second', looked_at = clock_timestamp(),
    copied = f.copied + (SELECT count(*) FROM fresh)
  WHERE f.name = :feed AND f.token = :token::uuid RETURNING f.name
), noted AS (
  INSERT INTO :schema.outbox_copied (feed, span, numbers, ids)
  SELECT mine.name, span.seen, array_agg(number ORDER BY number), array_agg(id ORDER BY number)
  FROM fresh CROSS JOIN mine CROSS JOIN span GROUP BY mine.name, span.seen
), written AS MATERIALIZED (
  SELECT :schema.outbox_write(json_agg(m.message ORDER BY fresh.number, m.place))
  FROM fresh CROSS JOIN mine CROSS JOIN LATERAL json_array_elements(fresh.messages) WITH ORDINALITY AS m(message, place)
  HAVING count(*) > 0
)
SELECT ARRAY(SELECT number FROM fresh) AS numbers FROM mine
WHERE (SELECT count(*) FROM written) >= 0  -- so that it is called
