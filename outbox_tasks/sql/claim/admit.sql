-- Of these destinations, those that can't be claimed for as usual: whether they are paused or their circuit is open
-- (shut), whether this claim may take one message as a probe (tried), and how many slow sends run (slow). Only one claim
-- may probe, and the next one only after another pause.
--
-- asked: JSON rows of destination and patience: seconds after which a send is slow (null: nobody asks for these); token:
-- of the probe's lease; hold: seconds that the probe may take; keep: seconds for which a send takes a place.
WITH asked AS MATERIALIZED (
  SELECT * FROM json_to_recordset(:asked::json) AS r(destination text, patience float)
), tried AS (
  UPDATE :schema.outbox_destinations d
  SET probe = :token::uuid, pause_until = clock_timestamp() + :hold::float * interval '1 second'
  FROM asked
  WHERE d.name = asked.destination AND d.opened_at IS NOT NULL AND d.paused_at IS NULL AND d.pause_until <= now()
  RETURNING d.name
), found AS (
  SELECT asked.destination AS name, coalesce(d.opened_at IS NOT NULL OR d.paused_at IS NOT NULL, false) AS shut,
         tried.name IS NOT NULL AS tried,
         CASE WHEN asked.patience IS NULL THEN 0 ELSE (
           SELECT count(*) FROM :schema.outbox_leases l
           WHERE l.destination = asked.destination AND l.begun_at > now() - :keep::float * interval '1 second'
             AND l.begun_at <= now() - asked.patience * interval '1 second') END AS slow
  FROM asked LEFT JOIN :schema.outbox_destinations d ON d.name = asked.destination
  LEFT JOIN tried ON tried.name = asked.destination
)
SELECT * FROM found WHERE shut OR slow > 0
