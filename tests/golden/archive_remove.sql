DELETE FROM outbox_archive_20261120
WHERE ctid >= CAST(%(first)s::VARCHAR AS tid)
  AND ctid < CAST(%(last)s::VARCHAR AS tid)
  AND outbox_archive_20261120.finished_at >= %(since)s::TIMESTAMP WITH TIME ZONE
  AND outbox_archive_20261120.finished_at < %(until)s::TIMESTAMP WITH TIME ZONE;
