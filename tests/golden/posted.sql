UPDATE outbox_alerts
SET post_at=NULL
WHERE outbox_alerts.name = ANY (%(names)s::TEXT[])
  AND outbox_alerts.post_at = %(lease)s::TIMESTAMP WITH TIME ZONE
RETURNING outbox_alerts.name;
