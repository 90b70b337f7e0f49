SELECT outbox_archive_20261120.seq, outbox_archive_20261120.id, octet_length(outbox_archive_20261120.payload) AS size
FROM outbox_archive_20261120
WHERE ctid >= CAST(%(first)s::VARCHAR AS tid)
  AND ctid < CAST(%(last)s::VARCHAR AS tid)
  AND outbox_archive_20261120.finished_at >= %(since)s::TIMESTAMP WITH TIME ZONE
  AND outbox_archive_20261120.finished_at < %(until)s::TIMESTAMP WITH TIME ZONE
  AND outbox_archive_20261120.seq > %(after)s::BIGINT
  AND (%(states)s::TEXT[] IS NULL OR outbox_archive_20261120.state = ANY (%(states)s::TEXT[]))
  AND (%(destination)s::VARCHAR IS NULL OR outbox_archive_20261120.destination = %(destination)s::VARCHAR)
  AND (%(pattern)s::VARCHAR IS NULL OR outbox_archive_20261120.event_type LIKE %(pattern)s::VARCHAR)
  AND (%(key)s::VARCHAR IS NULL OR outbox_archive_20261120.key = %(key)s::VARCHAR)
  AND (%(code)s::VARCHAR IS NULL OR outbox_archive_20261120.last_error_code = %(code)s::VARCHAR)
  AND (CAST(%(older)s AS FLOAT) IS NULL OR outbox_archive_20261120.created_at <= now() - CAST(%(older)s AS FLOAT) * interval '1 second')
  AND (CAST(%(newer)s AS FLOAT) IS NULL OR outbox_archive_20261120.created_at >= now() - CAST(%(newer)s AS FLOAT) * interval '1 second');
