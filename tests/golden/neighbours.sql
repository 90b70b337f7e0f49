SELECT outbox_publishers.holder
FROM outbox_publishers
WHERE starts_with(outbox_publishers.holder, %(place)s::VARCHAR)
  AND outbox_publishers.seen_at > now() - %(recent)s * interval '1 second';
