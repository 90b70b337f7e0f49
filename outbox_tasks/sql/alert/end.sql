-- Ends the alerts of which nothing is left and nothing new came for `quiet` seconds. `now` is true for those whose end is
-- sent: not for dead letters, which end when a person acts. posting: whether to post what is sent.
--
-- A message died a moment before its alert began; those that died for another reason have an alert of their own. Each
-- check counts what is stale, so if nothing new came, that is over.
UPDATE :schema.outbox_alerts a
SET over_at = now(),
    (told, untold, posts, post_at) = (
      SELECT CASE WHEN is_sent THEN a.untold ELSE a.told END,
             CASE WHEN is_sent THEN 0 ELSE a.untold END,
             CASE WHEN is_sent THEN 0 ELSE a.posts END,
             CASE WHEN is_sent AND :posting::boolean THEN now() ELSE a.post_at END
      FROM (SELECT a.kind NOT IN ('dead_letter', 'key_blocked') AS is_sent) AS state)
WHERE a.over_at IS NULL AND a.last_at < now() - :quiet::float * interval '1 second' AND NOT CASE a.kind
  WHEN 'breaker' THEN EXISTS (
    SELECT FROM :schema.outbox_destinations d WHERE d.name = a.destination AND d.opened_at IS NOT NULL)
  WHEN 'dead_letter' THEN EXISTS (
    SELECT FROM :schema.outbox_dead d LEFT JOIN :schema.outbox_trouble t ON t.seq = d.seq
    WHERE d.destination = a.destination AND d.dead_at > a.first_at - interval '1 minute'
      AND t.code IS NOT DISTINCT FROM a.facts ->> 'code')
  WHEN 'key_blocked' THEN EXISTS (
    SELECT FROM :schema.outbox_dead d
    WHERE d.destination = a.destination AND d.dead_at > a.first_at - interval '1 minute' AND d.key IS NOT NULL)
  ELSE false END
RETURNING a.name, a.kind, a.destination, a.first_at, a.last_at, a.told_at, a.over_at, a.count, a.told, a.facts,
          a.kind NOT IN ('dead_letter', 'key_blocked') AS now
