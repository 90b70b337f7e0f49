-- Of the messages beyond `last`, the next `look`, in the order of their numbers, with what the journal and the leases say of
-- them. Walks the primary keys of outbox_messages, a day after the other. The journal is read by one range of numbers.
WITH spot AS (
  (SELECT m.seq, m.id, m.destination, m.key, m.event_type, m.created_at, m.deliver_at FROM :schema.outbox_messages m
   WHERE NOT :newer::boolean AND m.seq < :last::bigint ORDER BY m.seq DESC LIMIT :look::integer)
  UNION ALL
  (SELECT m.seq, m.id, m.destination, m.key, m.event_type, m.created_at, m.deliver_at FROM :schema.outbox_messages m
   WHERE :newer::boolean AND m.seq > :last::bigint ORDER BY m.seq LIMIT :look::integer)
), seen AS MATERIALIZED (
  SELECT spot.*, row_number() OVER (ORDER BY CASE WHEN :newer::boolean THEN seq ELSE -seq END) AS place FROM spot
), span AS MATERIALIZED (
  SELECT min(seq) AS low, max(seq) AS high FROM seen
), done AS MATERIALIZED (
  SELECT s.seq, j.state, j.at, j.holder
  FROM span CROSS JOIN LATERAL (
    SELECT j.* FROM :schema.outbox_journal j
    WHERE j.seqs && int8multirange(int8range(span.low, span.high, '[]')) AND j.first <= span.high
      AND j.first >= (span.low >> 16) << 16 OFFSET 0
  ) AS j
  CROSS JOIN LATERAL unnest(j.seqs) AS r
  CROSS JOIN LATERAL generate_series(greatest(lower(r), span.low), least(upper(r) - 1, span.high)) AS s(seq)
), leased AS MATERIALIZED (
  SELECT s AS seq, l.locked_until, l.begun_at, l.holder
  FROM span CROSS JOIN :schema.outbox_leases l CROSS JOIN LATERAL unnest(l.seqs) AS s WHERE s BETWEEN span.low AND span.high
), known AS MATERIALIZED (  -- FULL: PostgreSQL has no nested loop for it; what it expects of the numbers of a range is wrong
  SELECT * FROM (
    SELECT m.*, done.state AS ended, done.at AS finished_at, l.locked_until AS lease_end, l.begun_at,
           coalesce(done.holder, l.holder) AS holder
    FROM seen m FULL JOIN done ON done.seq = m.seq FULL JOIN leased l ON l.seq = m.seq OFFSET 0
  ) AS m
  WHERE m.place IS NOT NULL
)
