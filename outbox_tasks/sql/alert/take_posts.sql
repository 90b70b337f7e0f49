-- Leases the alerts to post, by `post_at`. hold: seconds.
UPDATE :schema.outbox_alerts a SET post_at = now() + :hold::float * interval '1 second', posts = a.posts + 1
WHERE a.name = ANY (ARRAY(
  SELECT name FROM :schema.outbox_alerts WHERE post_at <= now() ORDER BY post_at LIMIT 20 FOR UPDATE SKIP LOCKED))
RETURNING a.name, a.kind, a.destination, a.first_at, a.last_at, a.told_at, a.over_at, a.count, a.told, a.facts, a.post_at, a.posts
