-- Everything about one message, once for each time that it was written: a replay writes it again.
--
-- ids: its id alone; part: bytes of the payload (null: all; 0: for somebody who may not see contents: no headers and no history
-- either, but the event's id). place: the table that it is in, or the state of its run.
-- Indexes: outbox_messages (id), of each day; then by number.
WITH
  \ir parts/named.sql
SELECT m.seq, m.id, m.destination, m.key, m.event_type, s.state, s.attempts, coalesce(x.spared, 0) AS spared,
       coalesce(x.outages, 0) AS outages, t.code AS last_error_code, t.error AS last_error, c.content_type, c.aggregate_type,
       c.aggregate_id, c.priority, c.latest, m.deliver_at, m.created_at, coalesce(m.lease, r.token) AS lease, m.begun_at,
       m.begun_at IS NOT NULL OR r.state IS NOT DISTINCT FROM 'running' AS begun, coalesce(m.holder, r.holder) AS locked_by,
       s.locked_until, r.handed_at, d.dead_at, m.finished_at, d.kin AS group, octet_length(c.payload) AS size,
       CASE WHEN m.ended IS NOT NULL THEN 'journal' WHEN d.seq IS NOT NULL THEN 'dead' WHEN r.seq IS NOT NULL THEN r.state
            WHEN m.lease_end IS NOT NULL THEN 'leased' WHEN w.seq IS NOT NULL THEN 'waiting' WHEN h.seq IS NOT NULL THEN 'held'
            ELSE 'ready' END AS place,
       CASE WHEN :part::integer IS NULL THEN c.payload
            WHEN :part::integer > 0 THEN substr(c.payload, 1, :part::integer) END AS payload,
       CASE WHEN coalesce(:part::integer, 1) > 0 THEN coalesce(c.headers, '{}')
            ELSE jsonb_strip_nulls(jsonb_build_object('eventid', c.headers -> 'eventid')) END AS headers,
       CASE WHEN coalesce(:part::integer, 1) > 0 THEN coalesce(x.history, '[]') END AS history
\ir parts/states.sql
CROSS JOIN LATERAL (SELECT * FROM :schema.outbox_messages c WHERE c.seq = m.seq LIMIT 1) AS c
LEFT JOIN LATERAL (SELECT * FROM :schema.outbox_trouble x WHERE x.seq = m.seq LIMIT 1) AS x ON true
