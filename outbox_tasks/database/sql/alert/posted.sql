-- Notes that alerts were posted. codes, which: of the alerts, two arrays of one length; told_at: what is told later is not posted.
UPDATE :schema.outbox_alerts a SET is_unposted = false
FROM unnest(:codes::text[], :which::text[]) AS posted(code, which)
WHERE (a.code, a.which) = (posted.code, posted.which) AND a.told_at <= :told_at::timestamptz
