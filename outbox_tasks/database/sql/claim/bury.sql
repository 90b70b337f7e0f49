-- Makes dead letters of up to `most` messages that have been due for `grace` seconds for destinations that are not `known`. Writers may
-- know of a destination before the relay does. Messages that are held are buried too, whatever their key waits for.
--
-- past, look: a writer can name any number of destinations, so this statement looks at `look` of them, after the name `past`. Returns the
-- messages. The last row has no number: its destination is the `past` of the next look (an empty text: from the first name on).
WITH RECURSIVE place AS (
  SELECT :past::text AS destination, 0 AS n
  UNION ALL
  SELECT :schema.outbox_next_destination(place.destination, NULL), n + 1
  FROM place WHERE place.destination IS NOT NULL AND n < :look::integer
), strange AS MATERIALIZED (
  SELECT destination, n FROM place WHERE n > 0 AND destination IS NOT NULL
), lot AS MATERIALIZED (
  SELECT r.* FROM strange CROSS JOIN LATERAL (
    SELECT * FROM (
      SELECT ctid AS at, false AS is_held FROM :schema.outbox_ready
      WHERE key IS NULL AND NOT alone AND destination = strange.destination AND since <= now() - :grace::float * interval '1 second'
      ORDER BY priority, xid, seq LIMIT :most::integer FOR UPDATE SKIP LOCKED) AS keyless
    UNION ALL
    SELECT * FROM (
      SELECT ctid, false FROM :schema.outbox_ready
      WHERE key IS NOT NULL AND destination = strange.destination AND since <= now() - :grace * interval '1 second'
      ORDER BY seq LIMIT :most FOR UPDATE SKIP LOCKED) AS new
    UNION ALL
    SELECT * FROM (
      SELECT ctid, false FROM :schema.outbox_ready WHERE alone AND destination = strange.destination
      ORDER BY seq LIMIT :most FOR UPDATE SKIP LOCKED) AS alone
    UNION ALL
    SELECT * FROM (
      SELECT ctid, true FROM :schema.outbox_held
      WHERE destination = strange.destination AND since <= now() - :grace * interval '1 second'
      ORDER BY key, seq LIMIT :most FOR UPDATE SKIP LOCKED) AS held) AS r
  WHERE strange.destination <> ALL (:known::text[]) LIMIT :most
), gone AS (
  DELETE FROM :schema.outbox_ready r USING lot WHERE r.ctid = lot.at AND NOT lot.is_held RETURNING r.seq
), gone_held AS (
  DELETE FROM :schema.outbox_held h USING lot WHERE h.ctid = lot.at AND lot.is_held RETURNING h.seq
), buried AS MATERIALIZED (
  SELECT m.seq, m.id, m.event_type, m.destination, m.key, 'no destination ''' || left(m.destination, 100) || ''' is configured' AS error
  FROM (SELECT seq FROM gone UNION ALL SELECT seq FROM gone_held) AS g
  CROSS JOIN LATERAL (SELECT * FROM :schema.outbox_messages m WHERE m.seq = g.seq LIMIT 1) AS m
), noted AS (
  INSERT INTO :schema.outbox_trouble AS t (seq, code, error, history)
  SELECT seq, 'unknown_destination', error, :schema.outbox_noted('[]', jsonb_build_object(
           'at', clock_timestamp(), 'what', 'dead', 'code', 'unknown_destination', 'error', error))
  FROM buried
  ON CONFLICT (seq) DO UPDATE SET code = excluded.code, error = excluded.error,
    history = :schema.outbox_noted(t.history, excluded.history -> 0)
), died AS (
  INSERT INTO :schema.outbox_dead (seq, destination, key, kin)
  SELECT seq, destination, key, :schema.outbox_error_group(destination, event_type, 'unknown_destination', error) FROM buried
)
SELECT seq, id::text, event_type, destination, key, error FROM buried
UNION ALL
SELECT NULL, NULL, NULL, coalesce((SELECT destination FROM strange WHERE n = :look), ''), NULL, NULL
