WITH gone AS (
  DELETE FROM outbox_archive_20261120
  WHERE ctid >= CAST(%(first)s::VARCHAR AS tid)
    AND ctid < CAST(%(last)s::VARCHAR AS tid)
  RETURNING outbox_archive_20261120.seq, outbox_archive_20261120.id, outbox_archive_20261120.event_type, outbox_archive_20261120.aggregate_type, outbox_archive_20261120.aggregate_id, outbox_archive_20261120.destination, outbox_archive_20261120.key, outbox_archive_20261120.payload, outbox_archive_20261120.content_type, outbox_archive_20261120.headers, outbox_archive_20261120.attempts, outbox_archive_20261120.last_error_code, outbox_archive_20261120.last_error, outbox_archive_20261120.created_at, outbox_archive_20261120.locked_by, outbox_archive_20261120.history, outbox_archive_20261120.state, outbox_archive_20261120.finished_at
), back AS (INSERT INTO outbox_archive (seq, id, event_type, aggregate_type, aggregate_id, destination, key, payload, content_type, headers, attempts, last_error_code, last_error, created_at, locked_by, history, state, finished_at) SELECT gone.seq AS seq, gone.id AS id, gone.event_type AS event_type, gone.aggregate_type AS aggregate_type, gone.aggregate_id AS aggregate_id, gone.destination AS destination, gone.key AS key, gone.payload AS payload, gone.content_type AS content_type, gone.headers AS headers, gone.attempts AS attempts, gone.last_error_code AS last_error_code, gone.last_error AS last_error, gone.created_at AS created_at, gone.locked_by AS locked_by, gone.history AS history, gone.state AS state, gone.finished_at AS finished_at FROM gone)
SELECT count(*) AS count_1
FROM gone;
