-- Notes that alerts were posted, unless they are to be posted again. names; lease: their `post_at`.
UPDATE :schema.outbox_alerts SET post_at = NULL WHERE name = ANY (:names::text[]) AND post_at = :lease::timestamptz
