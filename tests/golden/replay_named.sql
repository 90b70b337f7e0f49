SELECT outbox_archive.destination, outbox_archive.event_type, outbox_archive.state, outbox_archive.headers ? 'celery-message' AS task, outbox_archive.seq, outbox_archive.id, octet_length(outbox_archive.payload) AS size
FROM unnest(%(ids)s::UUID[]) AS anon_1(id)
JOIN outbox_archive ON outbox_archive.id = ANY (ARRAY[anon_1.id])
ORDER BY outbox_archive.finished_at;
