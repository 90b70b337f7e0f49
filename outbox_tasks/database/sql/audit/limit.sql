-- Sets limits of a destination in the place of its settings, and notes it in the audit.
-- destination; wanted: JSON rows of setting and value; seconds: for which they count (null: until somebody clears them); person;
-- reason.
WITH changed AS (
  INSERT INTO :schema.outbox_limits AS l (destination, setting, value, until, who, why)
  SELECT :destination::text, w.setting, w.value, clock_timestamp() + :seconds::float * interval '1 second', :person::text, :reason::text
  FROM json_to_recordset(:wanted::json) AS w(setting text, value float) ORDER BY w.setting
  ON CONFLICT (destination, setting) DO UPDATE
  SET value = excluded.value, until = excluded.until, who = excluded.who, why = excluded.why, since = clock_timestamp()
  RETURNING setting, value, until
)
INSERT INTO :schema.outbox_audit (who, why, action, target, facts, closed_at)
SELECT :person, :reason, 'limit', :destination,
       jsonb_strip_nulls(jsonb_build_object(
         'set', jsonb_agg(setting || ' ' || CASE WHEN value = 'infinity' THEN 'all' ELSE value::text END ORDER BY setting),
         'ends', to_char(max(until) AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS "UTC"'))),
       clock_timestamp()
FROM changed
