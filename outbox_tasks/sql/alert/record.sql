-- Counts what happened, by the names of the alerts, and returns these. `now` is true for those to send now: they begin, or
-- were sent long ago. An alert begins when something happens, is open while that lasts, and is over when nothing is left.
-- happened: JSON rows of alert (its name), kind, destination, count and facts, sorted by name, so that two processes never wait
-- for each other; again: seconds after which to send an alert again; posting: whether to post what is sent.
INSERT INTO :schema.outbox_alerts AS a (name, kind, destination, count, facts, first_at, last_at, told_at, told, post_at)
SELECT h.alert, h.kind, h.destination, h.count, h.facts, now(), now(), now(), h.count, CASE WHEN :posting::boolean THEN now() END
FROM json_to_recordset(:happened::json) AS h(alert text, kind text, destination text, count bigint, facts jsonb)
ON CONFLICT (name) DO UPDATE SET (first_at, last_at, told_at, over_at, count, told, untold, post_at, posts, facts) = (
  SELECT CASE WHEN begins THEN excluded.first_at ELSE a.first_at END,
         excluded.last_at,
         CASE WHEN due THEN excluded.told_at ELSE a.told_at END,
         NULL::timestamptz,
         CASE WHEN begins THEN excluded.count ELSE a.count + excluded.count END,
         CASE WHEN due THEN a.untold + excluded.count ELSE a.told END,
         CASE WHEN due THEN 0 ELSE a.untold + excluded.count END,
         CASE WHEN due THEN excluded.post_at ELSE a.post_at END,
         CASE WHEN due THEN 0 ELSE a.posts END,
         excluded.facts
  FROM (SELECT a.over_at IS NOT NULL AS begins,
               a.over_at IS NOT NULL OR a.told_at <= now() - :again::float * interval '1 second' AS due) AS state
)
RETURNING a.name, a.kind, a.destination, a.first_at, a.last_at, a.told_at, a.over_at, a.count, a.told, a.facts,
          a.told_at = a.last_at AS now
