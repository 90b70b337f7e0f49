SELECT outbox_messages.seq, outbox_messages.id, outbox_messages.event_type, outbox_messages.aggregate_type, outbox_messages.aggregate_id, outbox_messages.destination, outbox_messages.key, outbox_messages.content_type, outbox_messages.attempts, outbox_messages.last_error_code, outbox_messages.last_error, outbox_messages.created_at, outbox_messages.locked_by, outbox_messages.locked_until, outbox_messages.lease, outbox_messages.begun, outbox_messages.dead_at, outbox_messages.outages, outbox_messages.deliver_at, outbox_messages.latest, outbox_messages.priority, outbox_messages.handed_at, CASE
    WHEN (CAST(%(part)s::INTEGER AS INTEGER) IS NULL) THEN outbox_messages.payload
    WHEN (CAST(%(part)s::INTEGER AS INTEGER) > 0) THEN substr(outbox_messages.payload, %(start)s::INTEGER + 1, CAST(%(part)s::INTEGER AS INTEGER)) END AS payload, octet_length(outbox_messages.payload) AS size, CASE
    WHEN (coalesce(CAST(%(part)s::INTEGER AS INTEGER), 1) > 0) THEN outbox_messages.headers
    ELSE jsonb_strip_nulls(jsonb_build_object('eventid', outbox_messages.headers -> 'eventid')) END AS headers, CASE
    WHEN (coalesce(CAST(%(part)s::INTEGER AS INTEGER), 1) > 0) THEN outbox_messages.history END AS history, CASE
    WHEN (outbox_messages.status = 'dead') THEN 'dead'
    WHEN (outbox_messages.handed_at IS NOT NULL AND outbox_messages.locked_until > now() AND outbox_messages.begun) THEN 'running'
    WHEN (outbox_messages.handed_at IS NOT NULL AND outbox_messages.locked_until > now()) THEN 'handed over'
    WHEN (outbox_messages.lease IS NOT NULL AND outbox_messages.locked_until > now() AND (outbox_messages.begun OR outbox_messages.attempts = %(attempts_1)s::INTEGER)) THEN 'leased'
    WHEN (outbox_messages.attempts > %(attempts_2)s::INTEGER) THEN 'retrying'
    WHEN (outbox_messages.locked_until > now()) THEN 'scheduled'
    ELSE 'pending' END AS state, CAST(NULL AS TIMESTAMP WITH TIME ZONE) AS finished_at, CASE
    WHEN (outbox_messages.status = 'dead') THEN outbox_error_group(outbox_messages.destination, outbox_messages.event_type, outbox_messages.last_error_code, outbox_messages.last_error) END AS "group"
FROM outbox_messages
WHERE outbox_messages.id = %(id)s::UUID
UNION ALL
SELECT outbox_archive.seq, outbox_archive.id, outbox_archive.event_type, outbox_archive.aggregate_type, outbox_archive.aggregate_id, outbox_archive.destination, outbox_archive.key, outbox_archive.content_type, outbox_archive.attempts, outbox_archive.last_error_code, outbox_archive.last_error, outbox_archive.created_at, outbox_archive.locked_by, CAST(NULL AS TIMESTAMP WITH TIME ZONE) AS locked_until, CAST(NULL AS UUID) AS lease, CAST(NULL AS BOOLEAN) AS begun, CAST(NULL AS TIMESTAMP WITH TIME ZONE) AS dead_at, CAST(NULL AS INTEGER) AS outages, CAST(NULL AS TIMESTAMP WITH TIME ZONE) AS deliver_at, CAST(NULL AS BOOLEAN) AS latest, CAST(NULL AS SMALLINT) AS priority, CAST(NULL AS TIMESTAMP WITH TIME ZONE) AS handed_at, CASE
    WHEN (CAST(%(part)s::INTEGER AS INTEGER) IS NULL) THEN outbox_archive.payload
    WHEN (CAST(%(part)s::INTEGER AS INTEGER) > 0) THEN substr(outbox_archive.payload, %(start)s::INTEGER + 1, CAST(%(part)s::INTEGER AS INTEGER)) END AS payload, octet_length(outbox_archive.payload) AS size, CASE
    WHEN (coalesce(CAST(%(part)s::INTEGER AS INTEGER), 1) > 0) THEN outbox_archive.headers
    ELSE jsonb_strip_nulls(jsonb_build_object('eventid', outbox_archive.headers -> 'eventid')) END AS headers, CASE
    WHEN (coalesce(CAST(%(part)s::INTEGER AS INTEGER), 1) > 0) THEN outbox_archive.history END AS history, outbox_archive.state, outbox_archive.finished_at, CAST(NULL AS TEXT) AS anon_1
FROM outbox_archive
WHERE outbox_archive.id = %(id)s::UUID;
-- attempts_1 = 0
-- attempts_2 = 0
