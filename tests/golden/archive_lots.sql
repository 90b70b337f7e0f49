SELECT CAST(min(placed.place) AS TEXT) AS first, CAST(max(placed.place) AS TEXT) AS last
FROM (
  SELECT ctid AS place, sum(octet_length(outbox_archive_20261120.payload)) OVER (ORDER BY ctid) / 16777216 AS lot
  FROM outbox_archive_20261120
  WHERE ctid >= CAST(%(first)s::VARCHAR AS tid)
    AND ctid < CAST(%(last)s::VARCHAR AS tid)
    AND outbox_archive_20261120.finished_at >= %(since)s::TIMESTAMP WITH TIME ZONE
    AND outbox_archive_20261120.finished_at < %(until)s::TIMESTAMP WITH TIME ZONE
) AS placed GROUP BY placed.lot
ORDER BY placed.lot;
