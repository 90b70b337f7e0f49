WITH share AS (
  SELECT share.destination AS destination, share.size AS size, share.ceiling AS ceiling, share.oldest AS oldest, share.largest AS largest, share.longest AS longest, share.blocks AS blocks, share.past AS past, share.beyond AS beyond
  FROM json_to_recordset(CAST(%(share)s::VARCHAR AS JSON)) AS share(destination TEXT, size INTEGER, ceiling INTEGER, oldest FLOAT, largest INTEGER, longest INTEGER, blocks BOOLEAN, past TEXT, beyond BIGINT)
), head AS MATERIALIZED (
  SELECT share.destination AS destination, share.size AS size, share.ceiling AS ceiling, share.oldest AS oldest, share.largest AS largest, share.longest AS longest, share.blocks AS blocks, share.past AS past, share.beyond AS beyond, walked.key AS key, walked.at AS at, walked.seq AS seq, walked.status AS status, walked.locked_until AS locked_until, walked.hop AS hop, walked.before AS before, walked.due AS due
  FROM share
  JOIN LATERAL (WITH RECURSIVE walk(key, at, seq, status, locked_until, hop, before, due) AS (
    SELECT first.key AS key, first.at AS at, first.seq AS seq, first.status AS status, first.locked_until AS locked_until, 1 AS hop, 0 AS before, CASE
        WHEN (first.status = 'pending' AND first.locked_until <= now()) THEN (
      SELECT CAST(count(*) AS INTEGER) + %(param_16)s::INTEGER AS anon_1
      FROM (
        SELECT behind.seq AS seq
        FROM outbox_messages AS behind
        WHERE behind.destination = share.destination
          AND behind.key = first.key
          AND behind.seq > first.seq
        ORDER BY behind.key, behind.seq
        LIMIT least(10, share.longest) - %(least_1)s::INTEGER
      ) AS few
    )
        ELSE 0 END AS due
    FROM (
      SELECT outbox_messages.key AS key, outbox_messages.ctid AS at, outbox_messages.seq AS seq, outbox_messages.status AS status, outbox_messages.locked_until AS locked_until
      FROM outbox_messages
      WHERE outbox_messages.destination = share.destination
        AND outbox_messages.seq > share.beyond
        AND (share.blocks OR outbox_messages.status = 'pending')
        AND outbox_messages.key IS NOT NULL
        AND (outbox_messages.key, outbox_messages.seq) > (coalesce(share.past, ''), CASE WHEN (share.past IS NULL) THEN %(param_17)s::INTEGER ELSE 9223372036854775807 END)
      ORDER BY outbox_messages.key, outbox_messages.seq
      LIMIT 1
    ) AS first
    UNION ALL
    SELECT following.key AS key, following.at AS at, following.seq AS seq, following.status AS status, following.locked_until AS locked_until, walk.hop + %(hop_1)s::INTEGER AS anon_2, walk.before + walk.due AS anon_3, CASE
        WHEN (following.status = 'pending' AND following.locked_until <= now()) THEN (
      SELECT CAST(count(*) AS INTEGER) + %(param_18)s::INTEGER AS anon_5
      FROM (
        SELECT behind.seq AS seq
        FROM outbox_messages AS behind
        WHERE behind.destination = share.destination
          AND behind.key = following.key
          AND behind.seq > following.seq
        ORDER BY behind.key, behind.seq
        LIMIT least(10, share.longest) - %(least_2)s::INTEGER
      ) AS few
    )
        ELSE 0 END AS anon_4
    FROM walk
    JOIN LATERAL (
      SELECT outbox_messages.key AS key, outbox_messages.ctid AS at, outbox_messages.seq AS seq, outbox_messages.status AS status, outbox_messages.locked_until AS locked_until
      FROM outbox_messages
      WHERE outbox_messages.destination = share.destination
        AND outbox_messages.seq > share.beyond
        AND (share.blocks OR outbox_messages.status = 'pending')
        AND outbox_messages.key > walk.key
      ORDER BY outbox_messages.key, outbox_messages.seq
      LIMIT 1
    ) AS following ON true
    WHERE walk.hop < share.size
      AND walk.before + walk.due < share.size
  ) SELECT walk.key AS key, walk.at AS at, walk.seq AS seq, walk.status AS status, walk.locked_until AS locked_until, walk.hop AS hop, walk.before AS before, walk.due AS due FROM walk) AS walked ON true
), ready AS MATERIALIZED (
  SELECT due.destination AS destination, due.size AS size, due.ceiling AS ceiling, due.oldest AS oldest, due.largest AS largest, due.longest AS longest, due.blocks AS blocks, due.past AS past, due.beyond AS beyond, due.key AS key, due.at AS at, due.seq AS seq, due.status AS status, due.locked_until AS locked_until, due.hop AS hop, due.before AS before, due.due AS due, due.reach AS reach, CAST(greatest(%(greatest_5)s::INTEGER, least(due.longest, CASE WHEN (due.size / count(*) OVER (PARTITION BY due.destination) < 10) THEN least(10, due.size - due.before) ELSE due.size / count(*) OVER (PARTITION BY due.destination) END)) AS INTEGER) AS length
  FROM (
    SELECT head.destination AS destination, head.size AS size, head.ceiling AS ceiling, head.oldest AS oldest, head.largest AS largest, head.longest AS longest, head.blocks AS blocks, head.past AS past, head.beyond AS beyond, head.key AS key, head.at AS at, head.seq AS seq, head.status AS status, head.locked_until AS locked_until, head.hop AS hop, head.before AS before, head.due AS due, least(%(high)s::BIGINT, (
      SELECT min(marks.floor) AS min_1
      FROM json_to_recordset(CAST(%(marks)s::VARCHAR AS JSON)) AS marks(class BIGINT, floor BIGINT)
      WHERE marks.class = CAST(outbox_key_class(head.destination, head.key) AS BIGINT) + %(param_15)s::BIGINT OR marks.class = outbox_all_keys()
    )) AS reach
    FROM head
    WHERE head.status = 'pending'
      AND head.locked_until <= now()
  ) AS due
  WHERE due.seq <= due.reach
), mine AS MATERIALIZED (
  SELECT row.id AS id, row.at AS at, row.attempts AS attempts, row.lease AS lease, row.begun AS begun, row.handed_at AS handed_at, row.locked_by AS locked_by, row.last_error_code AS last_error_code, row.latest AS latest, row.since AS since, row.bytes AS bytes, ready.destination AS destination, ready.key AS key, ready.seq AS seq, ready.ceiling AS ceiling, ready.oldest AS oldest, ready.largest AS largest, ready.length AS length, ready.reach AS reach
  FROM ready
  JOIN LATERAL (
    SELECT outbox_messages.id AS id, outbox_messages.ctid AS at, outbox_messages.attempts AS attempts, outbox_messages.lease AS lease, outbox_messages.begun AS begun, outbox_messages.handed_at AS handed_at, outbox_messages.locked_by AS locked_by, outbox_messages.last_error_code AS last_error_code, outbox_messages.latest AS latest, coalesce(outbox_messages.deliver_at, outbox_messages.created_at) AS since, octet_length(outbox_messages.payload) AS bytes
    FROM outbox_messages
    WHERE outbox_messages.ctid = ready.at
      AND outbox_messages.status = 'pending'
      AND outbox_messages.locked_until <= now()
    FOR UPDATE SKIP LOCKED
  ) AS row ON true
), run AS MATERIALIZED (
  SELECT placed.at AS at, placed.seq AS seq, placed.place AS place, placed.fits AS fits, placed.bytes AS bytes, mine.destination AS destination, mine.key AS key, mine.ceiling AS ceiling, mine.oldest AS oldest, mine.largest AS largest
  FROM mine
  JOIN LATERAL (
    SELECT next.at AS at, next.seq AS seq, row_number() OVER (ORDER BY next.seq) AS place, bool_and(next.status = 'pending' AND next.locked_until <= now() AND NOT (next.latest AND next.attempts > %(attempts_1)s::INTEGER) AND next.seq <= mine.reach AND NOT (next.begun AND next.handed_at IS NULL OR coalesce(next.last_error_code = %(last_error_code_1)s::VARCHAR OR next.last_error_code = %(last_error_code_2)s::VARCHAR OR next.last_error_code = %(last_error_code_3)s::VARCHAR, false)) AND NOT (next.attempts >= mine.ceiling AND NOT (next.begun = false AND next.handed_at IS NOT NULL) OR coalesce(next.since < now() - mine.oldest * interval '1 second', false) OR next.bytes > mine.largest)) OVER (ORDER BY next.seq) AS fits, sum(next.bytes) OVER (ORDER BY next.seq) AS bytes
    FROM (
      SELECT outbox_messages.id AS id, outbox_messages.ctid AS at, outbox_messages.attempts AS attempts, outbox_messages.lease AS lease, outbox_messages.begun AS begun, outbox_messages.handed_at AS handed_at, outbox_messages.locked_by AS locked_by, outbox_messages.last_error_code AS last_error_code, outbox_messages.latest AS latest, coalesce(outbox_messages.deliver_at, outbox_messages.created_at) AS since, octet_length(outbox_messages.payload) AS bytes, outbox_messages.seq AS seq, outbox_messages.status AS status, outbox_messages.locked_until AS locked_until
      FROM outbox_messages
      WHERE outbox_messages.destination = mine.destination
        AND outbox_messages.key = mine.key
        AND outbox_messages.seq > mine.seq
      ORDER BY outbox_messages.key, outbox_messages.seq
      LIMIT mine.length - %(length_1)s::INTEGER
    ) AS next
  ) AS placed ON true
  WHERE mine.length > %(length_2)s::INTEGER
    AND NOT (mine.begun AND mine.handed_at IS NULL OR coalesce(mine.last_error_code = %(last_error_code_4)s::VARCHAR OR mine.last_error_code = %(last_error_code_5)s::VARCHAR OR mine.last_error_code = %(last_error_code_6)s::VARCHAR, false))
    AND NOT (mine.latest AND mine.attempts > %(attempts_2)s::INTEGER)
    AND NOT (mine.attempts >= mine.ceiling AND NOT (mine.begun = false AND mine.handed_at IS NOT NULL) OR coalesce(mine.since < now() - mine.oldest * interval '1 second', false) OR mine.bytes > mine.largest)
    AND placed.fits
    AND mine.bytes + placed.bytes <= 4194304
), behind AS MATERIALIZED (
  SELECT row.id AS id, row.at AS at, row.attempts AS attempts, row.lease AS lease, row.begun AS begun, row.handed_at AS handed_at, row.locked_by AS locked_by, row.last_error_code AS last_error_code, row.latest AS latest, row.since AS since, row.bytes AS bytes, run.destination AS destination, run.key AS key, run.seq AS seq, run.ceiling AS ceiling, run.oldest AS oldest, run.largest AS largest, run.place AS place
  FROM run
  JOIN LATERAL (
    SELECT outbox_messages.id AS id, outbox_messages.ctid AS at, outbox_messages.attempts AS attempts, outbox_messages.lease AS lease, outbox_messages.begun AS begun, outbox_messages.handed_at AS handed_at, outbox_messages.locked_by AS locked_by, outbox_messages.last_error_code AS last_error_code, outbox_messages.latest AS latest, coalesce(outbox_messages.deliver_at, outbox_messages.created_at) AS since, octet_length(outbox_messages.payload) AS bytes
    FROM outbox_messages
    WHERE outbox_messages.ctid = run.at
      AND outbox_messages.status = 'pending'
      AND outbox_messages.locked_until <= now()
    FOR UPDATE SKIP LOCKED
  ) AS row ON true
), picked AS (
  SELECT mine.id AS id, mine.at AS at, mine.attempts AS attempts, mine.lease AS lease, mine.begun AS begun, mine.handed_at AS handed_at, mine.locked_by AS locked_by, mine.last_error_code AS last_error_code, mine.latest AS latest, mine.since AS since, mine.bytes AS bytes, mine.destination AS destination, mine.key AS key, mine.seq AS seq, mine.ceiling AS ceiling, mine.oldest AS oldest, mine.largest AS largest
  FROM mine
  UNION ALL
  SELECT numbered.id AS id, numbered.at AS at, numbered.attempts AS attempts, numbered.lease AS lease, numbered.begun AS begun, numbered.handed_at AS handed_at, numbered.locked_by AS locked_by, numbered.last_error_code AS last_error_code, numbered.latest AS latest, numbered.since AS since, numbered.bytes AS bytes, numbered.destination AS destination, numbered.key AS key, numbered.seq AS seq, numbered.ceiling AS ceiling, numbered.oldest AS oldest, numbered.largest AS largest
  FROM (
    SELECT behind.id AS id, behind.at AS at, behind.attempts AS attempts, behind.lease AS lease, behind.begun AS begun, behind.handed_at AS handed_at, behind.locked_by AS locked_by, behind.last_error_code AS last_error_code, behind.latest AS latest, behind.since AS since, behind.bytes AS bytes, behind.destination AS destination, behind.key AS key, behind.seq AS seq, behind.ceiling AS ceiling, behind.oldest AS oldest, behind.largest AS largest, behind.place AS place, row_number() OVER (PARTITION BY behind.destination, behind.key ORDER BY behind.place) AS found
    FROM behind
  ) AS numbered
  WHERE numbered.found = numbered.place
), taken AS (UPDATE outbox_messages SET attempts=CASE WHEN (picked.begun = false AND picked.handed_at IS NOT NULL) THEN greatest(outbox_messages.attempts, %(greatest_1)s::INTEGER) - %(greatest_2)s::INTEGER ELSE outbox_messages.attempts END, last_error_code=CASE WHEN (picked.begun AND picked.handed_at IS NULL) THEN %(param_1)s::VARCHAR WHEN (picked.begun AND picked.handed_at IS NOT NULL) THEN %(param_2)s::VARCHAR WHEN coalesce(picked.since < now() - picked.oldest * interval '1 second', false) THEN %(param_3)s::VARCHAR WHEN (picked.bytes > picked.largest) THEN %(param_4)s::VARCHAR WHEN (picked.attempts >= picked.ceiling AND NOT (picked.begun = false AND picked.handed_at IS NOT NULL) OR coalesce(picked.since < now() - picked.oldest * interval '1 second', false) OR picked.bytes > picked.largest) THEN coalesce(outbox_messages.last_error_code, %(param_5)s::VARCHAR) WHEN (picked.lease IS NOT NULL) THEN coalesce(outbox_messages.last_error_code, CASE WHEN (picked.begun = false AND picked.handed_at IS NOT NULL) THEN %(param_6)s::VARCHAR ELSE CASE WHEN (picked.locked_by IS NULL) THEN %(param_7)s::VARCHAR ELSE %(param_8)s::VARCHAR END END) ELSE outbox_messages.last_error_code END, last_error=CASE WHEN (picked.begun AND picked.handed_at IS NULL) THEN format(%(format_1)s::VARCHAR, picked.attempts, picked.locked_by) WHEN (picked.begun AND picked.handed_at IS NOT NULL) THEN format(%(format_2)s::VARCHAR, picked.attempts, picked.locked_by) WHEN coalesce(picked.since < now() - picked.oldest * interval '1 second', false) THEN format(%(format_3)s::VARCHAR, picked.oldest, coalesce(outbox_messages.last_error, %(coalesce_1)s::VARCHAR)) WHEN (picked.bytes > picked.largest) THEN format(%(format_4)s::VARCHAR, picked.bytes, picked.largest) WHEN (picked.begun = false AND picked.handed_at IS NOT NULL) THEN coalesce(outbox_messages.last_error, %(param_9)s::VARCHAR) WHEN (picked.lease IS NOT NULL) THEN coalesce(outbox_messages.last_error, CASE WHEN (picked.locked_by IS NULL) THEN %(param_10)s::VARCHAR ELSE format(%(format_5)s::VARCHAR, picked.locked_by) END) ELSE outbox_messages.last_error END, locked_by=%(holder)s::VARCHAR, history=CASE WHEN (picked.begun AND picked.handed_at IS NULL OR picked.attempts >= picked.ceiling AND NOT (picked.begun = false AND picked.handed_at IS NOT NULL) OR coalesce(picked.since < now() - picked.oldest * interval '1 second', false) OR picked.bytes > picked.largest OR picked.lease IS NOT NULL) THEN CAST(outbox_noted(outbox_messages.history, jsonb_strip_nulls(jsonb_build_object(%(jsonb_build_object_1)s::VARCHAR, clock_timestamp(), %(jsonb_build_object_2)s::VARCHAR, CASE WHEN (picked.attempts >= picked.ceiling AND NOT (picked.begun = false AND picked.handed_at IS NOT NULL) OR coalesce(picked.since < now() - picked.oldest * interval '1 second', false) OR picked.bytes > picked.largest) THEN %(param_11)s::VARCHAR ELSE %(param_12)s::VARCHAR END, %(jsonb_build_object_3)s::VARCHAR, picked.attempts, %(jsonb_build_object_4)s::VARCHAR, CASE WHEN (picked.begun AND picked.handed_at IS NULL) THEN %(param_1)s::VARCHAR WHEN (picked.begun AND picked.handed_at IS NOT NULL) THEN %(param_2)s::VARCHAR WHEN coalesce(picked.since < now() - picked.oldest * interval '1 second', false) THEN %(param_3)s::VARCHAR WHEN (picked.bytes > picked.largest) THEN %(param_4)s::VARCHAR WHEN (picked.attempts >= picked.ceiling AND NOT (picked.begun = false AND picked.handed_at IS NOT NULL) OR coalesce(picked.since < now() - picked.oldest * interval '1 second', false) OR picked.bytes > picked.largest) THEN coalesce(outbox_messages.last_error_code, %(param_5)s::VARCHAR) WHEN (picked.lease IS NOT NULL) THEN CASE WHEN (picked.begun = false AND picked.handed_at IS NOT NULL) THEN %(param_6)s::VARCHAR ELSE CASE WHEN (picked.locked_by IS NULL) THEN %(param_7)s::VARCHAR ELSE %(param_8)s::VARCHAR END END END, %(jsonb_build_object_5)s::VARCHAR, picked.locked_by))) AS JSONB) ELSE outbox_messages.history END, status=CASE WHEN (picked.attempts >= picked.ceiling AND NOT (picked.begun = false AND picked.handed_at IS NOT NULL) OR coalesce(picked.since < now() - picked.oldest * interval '1 second', false) OR picked.bytes > picked.largest) THEN %(param_13)s::VARCHAR ELSE %(param_14)s::VARCHAR END, locked_until=((SELECT clock_timestamp() AS clock_timestamp_1) + %(hold)s * interval '1 second'), lease=CASE WHEN (picked.attempts >= picked.ceiling AND NOT (picked.begun = false AND picked.handed_at IS NOT NULL) OR coalesce(picked.since < now() - picked.oldest * interval '1 second', false) OR picked.bytes > picked.largest) THEN NULL ELSE %(token)s::UUID END, begun=false, dead_at=CASE WHEN (picked.attempts >= picked.ceiling AND NOT (picked.begun = false AND picked.handed_at IS NOT NULL) OR coalesce(picked.since < now() - picked.oldest * interval '1 second', false) OR picked.bytes > picked.largest) THEN clock_timestamp() END, outages=CASE WHEN (picked.begun = false AND picked.handed_at IS NOT NULL) THEN greatest(outbox_messages.outages, %(greatest_3)s::INTEGER) - %(greatest_4)s::INTEGER ELSE outbox_messages.outages END, handed_at=NULL FROM picked WHERE outbox_messages.ctid = picked.at RETURNING outbox_messages.seq, CAST(outbox_messages.id AS TEXT) AS id, outbox_messages.destination, outbox_messages.event_type, outbox_messages.attempts, outbox_messages.status, picked.begun AND picked.handed_at IS NULL OR coalesce(picked.last_error_code = %(last_error_code_7)s::VARCHAR OR picked.last_error_code = %(last_error_code_8)s::VARCHAR OR picked.last_error_code = %(last_error_code_9)s::VARCHAR, false) AS alone, outbox_messages.key, outbox_messages.priority, outbox_messages.last_error_code AS code, outbox_messages.last_error AS error, picked.latest AND picked.attempts > %(attempts_3)s::INTEGER AND (EXISTS (
  SELECT newer.id
  FROM outbox_messages AS newer
  WHERE newer.destination = outbox_messages.destination
    AND newer.key = outbox_messages.key
    AND newer.seq > outbox_messages.seq
    AND newer.status = 'pending'
    AND newer.locked_until <= now()
)) AS superseded, CASE WHEN (picked.begun AND picked.handed_at IS NULL) THEN %(param_19)s::VARCHAR WHEN (picked.begun AND picked.handed_at IS NOT NULL) THEN %(param_20)s::VARCHAR WHEN (picked.begun = false AND picked.handed_at IS NOT NULL) THEN %(param_21)s::VARCHAR WHEN (picked.lease IS NOT NULL) THEN CASE WHEN (picked.locked_by IS NULL) THEN %(param_22)s::VARCHAR ELSE %(param_23)s::VARCHAR END END AS cause, octet_length(outbox_messages.payload) AS size)
SELECT taken.seq, taken.id, taken.destination, taken.event_type, taken.attempts, taken.status, taken.alone, taken.key, taken.priority, taken.code, taken.error, taken.superseded, taken.cause, taken.size
FROM taken
UNION ALL
SELECT CAST(%(param_24)s AS BIGINT) AS seq, CAST(%(param_25)s AS TEXT) AS id, head.destination AS destination, CAST(%(param_26)s AS TEXT) AS event_type, CAST(%(param_27)s AS INTEGER) AS attempts, CAST(%(param_28)s AS TEXT) AS status, CAST(%(param_29)s AS BOOLEAN) AS alone, head.key AS key, CAST(%(param_30)s AS SMALLINT) AS priority, CAST(%(param_31)s AS TEXT) AS code, CAST(%(param_32)s AS TEXT) AS error, CAST(%(param_33)s AS BOOLEAN) AS superseded, CAST(%(param_34)s AS VARCHAR) AS cause, CAST(%(param_35)s AS INTEGER) AS size
FROM head
WHERE NOT (head.hop < head.size AND head.before + head.due < head.size);
-- attempts_1 = 0
-- attempts_2 = 0
-- attempts_3 = 0
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
-- greatest_5 = 1
-- hop_1 = 1
-- jsonb_build_object_1 = 'at'
-- jsonb_build_object_2 = 'what'
-- jsonb_build_object_3 = 'attempt'
-- jsonb_build_object_4 = 'code'
-- jsonb_build_object_5 = 'by'
-- last_error_code_1 = 'unsettled'
-- last_error_code_2 = 'failed_together'
-- last_error_code_3 = 'failed_alone'
-- last_error_code_4 = 'unsettled'
-- last_error_code_5 = 'failed_together'
-- last_error_code_6 = 'failed_alone'
-- last_error_code_7 = 'unsettled'
-- last_error_code_8 = 'failed_together'
-- last_error_code_9 = 'failed_alone'
-- least_1 = 1
-- least_2 = 1
-- length_1 = 1
-- length_2 = 1
-- param_1 = 'unsettled'
-- param_10 = 'its writer leased it, and no worker began it in time: the writer ended first, or its task was lost or late'
-- param_11 = 'dead'
-- param_12 = 'claimed again'
-- param_13 = 'dead'
-- param_14 = 'pending'
-- param_15 = 4294967296
-- param_16 = 1
-- param_17 = 0
-- param_18 = 1
-- param_19 = 'unsettled'
-- param_2 = 'worker_lost'
-- param_20 = 'worker_lost'
-- param_21 = 'not_started'
-- param_22 = 'direct_expired'
-- param_23 = 'lease_expired'
-- param_3 = 'too_old'
-- param_4 = 'too_large'
-- param_5 = 'attempts_exhausted'
-- param_6 = 'not_started'
-- param_7 = 'direct_expired'
-- param_8 = 'lease_expired'
-- param_9 = 'the broker had it, and no worker began it in time: it was lost there, or it waits in a long queue'
