WITH picked AS (
  SELECT placed.id AS id, placed.at AS at, placed.attempts AS attempts, placed.lease AS lease, placed.begun AS begun, placed.handed_at AS handed_at, placed.locked_by AS locked_by, placed.last_error_code AS last_error_code, placed.latest AS latest, placed.since AS since, placed.bytes AS bytes, placed.locked_until AS locked_until, placed.destination AS destination, placed.size AS size, placed.ceiling AS ceiling, placed.oldest AS oldest, placed.largest AS largest, placed.turn AS turn, placed.place AS place
  FROM (
    SELECT found.id AS id, found.at AS at, found.attempts AS attempts, found.lease AS lease, found.begun AS begun, found.handed_at AS handed_at, found.locked_by AS locked_by, found.last_error_code AS last_error_code, found.latest AS latest, found.since AS since, found.bytes AS bytes, found.locked_until AS locked_until, found.destination AS destination, found.size AS size, found.ceiling AS ceiling, found.oldest AS oldest, found.largest AS largest, found.turn AS turn, row_number() OVER (PARTITION BY found.destination ORDER BY found.turn, found.locked_until) AS place
    FROM (
      SELECT due.id AS id, due.at AS at, due.attempts AS attempts, due.lease AS lease, due.begun AS begun, due.handed_at AS handed_at, due.locked_by AS locked_by, due.last_error_code AS last_error_code, due.latest AS latest, due.since AS since, due.bytes AS bytes, due.locked_until AS locked_until, share.destination AS destination, share.size AS size, share.ceiling AS ceiling, share.oldest AS oldest, share.largest AS largest, FLOOR(row_number() OVER (PARTITION BY share.destination, lane.priority ORDER BY due.locked_until) / lane.weight) AS turn
      FROM json_to_recordset(CAST(%(share)s::VARCHAR AS JSON)) AS share(destination TEXT, size INTEGER, ceiling INTEGER, oldest FLOAT, largest INTEGER, longest INTEGER, blocks BOOLEAN, past TEXT, beyond BIGINT)
      JOIN (SELECT 1::smallint AS priority, 6 AS weight UNION ALL SELECT 0::smallint AS priority, 3 AS weight UNION ALL SELECT -1::smallint AS priority, 1 AS weight) AS lane ON true
      JOIN LATERAL (
        SELECT outbox_messages.id AS id, outbox_messages.ctid AS at, outbox_messages.attempts AS attempts, outbox_messages.lease AS lease, outbox_messages.begun AS begun, outbox_messages.handed_at AS handed_at, outbox_messages.locked_by AS locked_by, outbox_messages.last_error_code AS last_error_code, outbox_messages.latest AS latest, coalesce(outbox_messages.deliver_at, outbox_messages.created_at) AS since, octet_length(outbox_messages.payload) AS bytes, outbox_messages.locked_until AS locked_until
        FROM outbox_messages
        WHERE outbox_messages.status = 'pending'
          AND outbox_messages.locked_until <= now()
          AND outbox_messages.key IS NULL
          AND outbox_messages.destination = share.destination
          AND outbox_messages.priority = lane.priority
        ORDER BY outbox_messages.locked_until
        LIMIT share.size
        FOR UPDATE SKIP LOCKED
      ) AS due ON true
    ) AS found
  ) AS placed
  WHERE placed.place <= placed.size
)
UPDATE outbox_messages
SET attempts=CASE
    WHEN (picked.begun = false AND picked.handed_at IS NOT NULL) THEN greatest(outbox_messages.attempts, %(greatest_1)s::INTEGER) - %(greatest_2)s::INTEGER
    ELSE outbox_messages.attempts END,
  last_error_code=CASE
    WHEN (picked.begun AND picked.handed_at IS NULL) THEN %(param_1)s::VARCHAR
    WHEN (picked.begun AND picked.handed_at IS NOT NULL) THEN %(param_2)s::VARCHAR
    WHEN coalesce(picked.since < now() - picked.oldest * interval '1 second', false) THEN %(param_3)s::VARCHAR
    WHEN (picked.bytes > picked.largest) THEN %(param_4)s::VARCHAR
    WHEN (picked.attempts >= picked.ceiling AND NOT (picked.begun = false AND picked.handed_at IS NOT NULL) OR coalesce(picked.since < now() - picked.oldest * interval '1 second', false) OR picked.bytes > picked.largest) THEN coalesce(outbox_messages.last_error_code, %(param_5)s::VARCHAR)
    WHEN (picked.lease IS NOT NULL) THEN coalesce(outbox_messages.last_error_code, CASE WHEN (picked.begun = false AND picked.handed_at IS NOT NULL) THEN %(param_6)s::VARCHAR ELSE CASE WHEN (picked.locked_by IS NULL) THEN %(param_7)s::VARCHAR ELSE %(param_8)s::VARCHAR END END)
    ELSE outbox_messages.last_error_code END,
  last_error=CASE
    WHEN (picked.begun AND picked.handed_at IS NULL) THEN format(%(format_1)s::VARCHAR, picked.attempts, picked.locked_by)
    WHEN (picked.begun AND picked.handed_at IS NOT NULL) THEN format(%(format_2)s::VARCHAR, picked.attempts, picked.locked_by)
    WHEN coalesce(picked.since < now() - picked.oldest * interval '1 second', false) THEN format(%(format_3)s::VARCHAR, picked.oldest, coalesce(outbox_messages.last_error, %(coalesce_1)s::VARCHAR))
    WHEN (picked.bytes > picked.largest) THEN format(%(format_4)s::VARCHAR, picked.bytes, picked.largest)
    WHEN (picked.begun = false AND picked.handed_at IS NOT NULL) THEN coalesce(outbox_messages.last_error, %(param_9)s::VARCHAR)
    WHEN (picked.lease IS NOT NULL) THEN coalesce(outbox_messages.last_error, CASE WHEN (picked.locked_by IS NULL) THEN %(param_10)s::VARCHAR ELSE format(%(format_5)s::VARCHAR, picked.locked_by) END)
    ELSE outbox_messages.last_error END,
  locked_by=%(holder)s::VARCHAR,
  history=CASE
    WHEN (picked.begun AND picked.handed_at IS NULL OR picked.attempts >= picked.ceiling AND NOT (picked.begun = false AND picked.handed_at IS NOT NULL) OR coalesce(picked.since < now() - picked.oldest * interval '1 second', false) OR picked.bytes > picked.largest OR picked.lease IS NOT NULL) THEN CAST(outbox_noted(outbox_messages.history, jsonb_strip_nulls(jsonb_build_object(%(jsonb_build_object_1)s::VARCHAR, clock_timestamp(), %(jsonb_build_object_2)s::VARCHAR, CASE WHEN (picked.attempts >= picked.ceiling AND NOT (picked.begun = false AND picked.handed_at IS NOT NULL) OR coalesce(picked.since < now() - picked.oldest * interval '1 second', false) OR picked.bytes > picked.largest) THEN %(param_11)s::VARCHAR ELSE %(param_12)s::VARCHAR END, %(jsonb_build_object_3)s::VARCHAR, picked.attempts, %(jsonb_build_object_4)s::VARCHAR, CASE WHEN (picked.begun AND picked.handed_at IS NULL) THEN %(param_1)s::VARCHAR WHEN (picked.begun AND picked.handed_at IS NOT NULL) THEN %(param_2)s::VARCHAR WHEN coalesce(picked.since < now() - picked.oldest * interval '1 second', false) THEN %(param_3)s::VARCHAR WHEN (picked.bytes > picked.largest) THEN %(param_4)s::VARCHAR WHEN (picked.attempts >= picked.ceiling AND NOT (picked.begun = false AND picked.handed_at IS NOT NULL) OR coalesce(picked.since < now() - picked.oldest * interval '1 second', false) OR picked.bytes > picked.largest) THEN coalesce(outbox_messages.last_error_code, %(param_5)s::VARCHAR) WHEN (picked.lease IS NOT NULL) THEN CASE WHEN (picked.begun = false AND picked.handed_at IS NOT NULL) THEN %(param_6)s::VARCHAR ELSE CASE WHEN (picked.locked_by IS NULL) THEN %(param_7)s::VARCHAR ELSE %(param_8)s::VARCHAR END END END, %(jsonb_build_object_5)s::VARCHAR, picked.locked_by))) AS JSONB)
    ELSE outbox_messages.history END,
  status=CASE
    WHEN (picked.attempts >= picked.ceiling AND NOT (picked.begun = false AND picked.handed_at IS NOT NULL) OR coalesce(picked.since < now() - picked.oldest * interval '1 second', false) OR picked.bytes > picked.largest) THEN %(param_13)s::VARCHAR
    ELSE %(param_14)s::VARCHAR END,
  locked_until=((SELECT clock_timestamp() AS clock_timestamp_1) + %(hold)s * interval '1 second'),
  lease=CASE
    WHEN (picked.attempts >= picked.ceiling AND NOT (picked.begun = false AND picked.handed_at IS NOT NULL) OR coalesce(picked.since < now() - picked.oldest * interval '1 second', false) OR picked.bytes > picked.largest) THEN NULL
    ELSE %(token)s::UUID END,
  begun=false,
  dead_at=CASE
    WHEN (picked.attempts >= picked.ceiling AND NOT (picked.begun = false AND picked.handed_at IS NOT NULL) OR coalesce(picked.since < now() - picked.oldest * interval '1 second', false) OR picked.bytes > picked.largest) THEN clock_timestamp() END,
  outages=CASE
    WHEN (picked.begun = false AND picked.handed_at IS NOT NULL) THEN greatest(outbox_messages.outages, %(greatest_3)s::INTEGER) - %(greatest_4)s::INTEGER
    ELSE outbox_messages.outages END,
  handed_at=NULL
FROM picked
WHERE outbox_messages.ctid = picked.at
RETURNING outbox_messages.seq, CAST(outbox_messages.id AS TEXT) AS id, outbox_messages.destination, outbox_messages.event_type, outbox_messages.attempts, outbox_messages.status, picked.begun
  AND picked.handed_at IS NULL OR coalesce(picked.last_error_code = %(last_error_code_1)s::VARCHAR OR picked.last_error_code = %(last_error_code_2)s::VARCHAR OR picked.last_error_code = %(last_error_code_3)s::VARCHAR, false) AS alone, outbox_messages.key, outbox_messages.priority, outbox_messages.last_error_code AS code, outbox_messages.last_error AS error, false AS superseded, CASE
    WHEN (picked.begun AND picked.handed_at IS NULL) THEN %(param_15)s::VARCHAR
    WHEN (picked.begun AND picked.handed_at IS NOT NULL) THEN %(param_16)s::VARCHAR
    WHEN (picked.begun = false AND picked.handed_at IS NOT NULL) THEN %(param_17)s::VARCHAR
    WHEN (picked.lease IS NOT NULL) THEN CASE
    WHEN (picked.locked_by IS NULL) THEN %(param_18)s::VARCHAR
    ELSE %(param_19)s::VARCHAR END END AS cause, octet_length(outbox_messages.payload) AS size;
-- coalesce_1 = 'none'
-- format_1 = 'attempt %s was begun by %s and never settled: it died or lost its lease; the message may have been delivered'
-- format_2 = 'attempt %s ran on %s, and its worker was lost: it died, or could not say for too long that it runs'
-- format_3 = 'not delivered within %s seconds; the last error was: %s'
-- format_4 = 'its payload has %s bytes, and the destination takes %s: see max_bytes'
-- format_5 = 'claimed by %s, and the lease ran out before it was begun'
-- greatest_1 = -1000000000
-- greatest_2 = 1
-- greatest_3 = -1000000000
-- greatest_4 = 1
-- jsonb_build_object_1 = 'at'
-- jsonb_build_object_2 = 'what'
-- jsonb_build_object_3 = 'attempt'
-- jsonb_build_object_4 = 'code'
-- jsonb_build_object_5 = 'by'
-- last_error_code_1 = 'unsettled'
-- last_error_code_2 = 'failed_together'
-- last_error_code_3 = 'failed_alone'
-- param_1 = 'unsettled'
-- param_10 = 'its writer leased it, and no worker began it in time: the writer ended first, or its task was lost or late'
-- param_11 = 'dead'
-- param_12 = 'claimed again'
-- param_13 = 'dead'
-- param_14 = 'pending'
-- param_15 = 'unsettled'
-- param_16 = 'worker_lost'
-- param_17 = 'not_started'
-- param_18 = 'direct_expired'
-- param_19 = 'lease_expired'
-- param_2 = 'worker_lost'
-- param_3 = 'too_old'
-- param_4 = 'too_large'
-- param_5 = 'attempts_exhausted'
-- param_6 = 'not_started'
-- param_7 = 'direct_expired'
-- param_8 = 'lease_expired'
-- param_9 = 'the broker had it, and no worker began it in time: it was lost there, or it waits in a long queue'
