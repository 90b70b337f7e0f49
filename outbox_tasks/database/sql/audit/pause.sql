-- Pauses a destination, and notes it in the audit. A second pause without a reason changes nothing: who, when and why stay.
-- destination, person, reason.
WITH changed AS (
  INSERT INTO :schema.outbox_destinations AS d (name, paused_at, paused_by, paused_why)
  VALUES (:destination::text, clock_timestamp(), :person::text, :reason::text)
  ON CONFLICT (name) DO UPDATE SET (paused_at, paused_by, paused_why) = (
    SELECT CASE WHEN stays THEN d.paused_at ELSE excluded.paused_at END,
           CASE WHEN stays THEN d.paused_by ELSE excluded.paused_by END,
           CASE WHEN stays THEN d.paused_why ELSE excluded.paused_why END
    FROM (SELECT d.paused_at IS NOT NULL AND excluded.paused_why IS NULL AS stays) AS state)
  RETURNING d.name
), noted AS (
  INSERT INTO :schema.outbox_audit (who, why, action, target, facts, closed_at)
  SELECT :person, :reason, 'pause', name, '{}', clock_timestamp() FROM changed
)
SELECT name FROM changed
