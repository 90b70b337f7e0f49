-- Compares the problems that were found with what people were told, and notes the difference as told. Returns the alerts
-- that are told now (is_news), and those whose post has failed before. A problem is told when it appears, when a warning
-- becomes an error, when it is about twice as many as were told, and when it is over: when it was absent for `quiet`
-- seconds, so that one which comes and goes does not tell all day. One that follows from another is not told by itself, and
-- not over either. Nor is one over that may be among those which the list only counts: a problem of its code without
-- `which`. The severity is the worst since the problem began: 'error' sorts before 'warning'.
-- problems: JSON rows of code, which, severity, fact, cause, remedy, how_many, ago (seconds for which it has been so; null:
-- since now) and is_root; posting: whether to post what is told; keep: seconds for which an alert stays when it is over.
WITH found AS MATERIALIZED (
  SELECT DISTINCT ON (code, which) *
  FROM json_to_recordset(:problems::json) AS p(code text, which text, severity text, fact text, cause text, remedy text,
                                               how_many bigint, ago float, is_root boolean)
  ORDER BY code, which, is_root DESC
), appeared AS (
  INSERT INTO :schema.outbox_alerts AS a
    (code, which, severity, fact, cause, remedy, how_many, since, seen_at, told_at, told_how_many, is_unposted)
  SELECT code, which, severity, fact, cause, remedy, how_many, now() - coalesce(ago, 0) * interval '1 second', now(), now(),
         how_many, :posting::boolean
  FROM found WHERE is_root
  ON CONFLICT (code, which) DO UPDATE SET
    (severity, fact, cause, remedy, how_many, seen_at, over_at, since, told_at, told_how_many, is_unposted) = (
      SELECT CASE WHEN a.over_at IS NULL THEN least(a.severity, excluded.severity) ELSE excluded.severity END,
             excluded.fact, excluded.cause, excluded.remedy, excluded.how_many, now(), NULL::timestamptz,
             CASE WHEN a.over_at IS NULL THEN a.since ELSE excluded.since END,
             CASE WHEN is_news THEN now() ELSE a.told_at END,
             CASE WHEN is_news THEN excluded.how_many ELSE a.told_how_many END,
             CASE WHEN is_news THEN :posting ELSE a.is_unposted END
      FROM (SELECT a.over_at IS NOT NULL OR (a.severity, excluded.severity) = ('warning', 'error')
                   OR coalesce(excluded.how_many >= 2 * a.told_how_many, false) AS is_news) AS judged)
  RETURNING a.*
), followed AS (
  UPDATE :schema.outbox_alerts a SET seen_at = now()
  FROM found WHERE NOT found.is_root AND (a.code, a.which) = (found.code, found.which) AND a.over_at IS NULL
), ended AS (
  UPDATE :schema.outbox_alerts a SET over_at = now(), told_at = now(), is_unposted = :posting
  WHERE a.over_at IS NULL AND a.seen_at < now() - :quiet::float * interval '1 second'
    AND NOT EXISTS (SELECT FROM found WHERE found.code = a.code AND found.which IN (a.which, ''))
  RETURNING a.*
), forgotten AS (
  DELETE FROM :schema.outbox_alerts a WHERE a.over_at < now() - :keep::float * interval '1 second'
    AND NOT EXISTS (SELECT FROM found WHERE (found.code, found.which) = (a.code, a.which))
), changed AS (
  SELECT * FROM appeared UNION ALL SELECT * FROM ended
)
SELECT c.*, c.told_at = now() AS is_news FROM changed c WHERE c.told_at = now() OR c.is_unposted
UNION ALL
SELECT a.*, false FROM :schema.outbox_alerts a
WHERE a.is_unposted AND NOT EXISTS (SELECT FROM changed c WHERE (c.code, c.which) = (a.code, a.which))
