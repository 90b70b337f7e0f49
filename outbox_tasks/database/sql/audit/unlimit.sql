-- Ends all limits that people have set for a destination, so that its settings count, and notes it in the audit. destination;
-- person; reason. Returns the settings of those that still counted.
WITH gone AS (
  DELETE FROM :schema.outbox_limits WHERE destination = :destination::text RETURNING setting, until
), ended AS (
  SELECT setting FROM gone WHERE until IS NULL OR until > clock_timestamp()
), noted AS (
  INSERT INTO :schema.outbox_audit (who, why, action, target, facts, closed_at)
  SELECT :person::text, :reason::text, 'clear limits', :destination, jsonb_build_object('of', jsonb_agg(setting ORDER BY setting)),
         clock_timestamp()
  FROM ended HAVING count(*) > 0
)
SELECT setting FROM ended ORDER BY setting
