-- Everything about one message, once for each time that it was written: a replay writes it again.
--
-- id; part: bytes of the payload (null: all; 0: for somebody who may not see contents: no headers and no history either, but
-- the event's id); start: the bytes before the part. Indexes: outbox_messages (id), of each day; then by number.
WITH found AS (
  SELECT seq, id, destination, key, event_type, state, attempts, spared, outages, last_error_code, last_error, payload,
         content_type, headers, aggregate_type, aggregate_id, priority, latest, deliver_at, created_at, lease,
         begun_at, begun_at IS NOT NULL OR place = 'running' AS begun, locked_by, place,
         CASE WHEN state <> 'dead' THEN locked_until END AS locked_until, handed_at, dead_at, NULL::timestamptz AS finished_at,
         history, kin
  FROM :schema.outbox_at_work WHERE id = :id::uuid
  UNION ALL
  SELECT seq, id, destination, key, event_type, state, attempts, NULL, NULL, last_error_code, last_error, payload, content_type,
         headers, aggregate_type, aggregate_id, NULL, NULL, NULL, created_at, NULL, NULL, NULL,
         locked_by, 'journal', NULL, NULL, NULL, finished_at, history, NULL
  FROM :schema.outbox_archive WHERE id = :id::uuid
)
SELECT seq, id, destination, key, event_type, state, attempts, spared, outages, last_error_code, last_error, content_type,
       aggregate_type, aggregate_id, priority, latest, deliver_at, created_at, lease, begun_at, begun, locked_by, locked_until,
       handed_at, place, dead_at, finished_at, kin AS group, octet_length(payload) AS size,
       CASE WHEN :part::integer IS NULL THEN payload
            WHEN :part::integer > 0 THEN substr(payload, :start::integer + 1, :part::integer) END AS payload,
       CASE WHEN coalesce(:part::integer, 1) > 0 THEN coalesce(headers, '{}')
            ELSE jsonb_strip_nulls(jsonb_build_object('eventid', headers -> 'eventid')) END AS headers,
       CASE WHEN coalesce(:part::integer, 1) > 0 THEN coalesce(history, '[]') END AS history
FROM found
