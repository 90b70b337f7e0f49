-- What became of messages that a redrive has changed: of each state and code (of the last error, if it has failed since) the
-- number, and one id. ids; since: when the redrive began. Indexes: as for states.sql.
WITH
  \ir parts/named.sql
, found AS (
  SELECT m.id, s.state, CASE WHEN s.state = 'dead' OR m.ended IS NULL AND s.attempts > 0 THEN t.code END AS code
  \ir parts/states.sql
  WHERE m.ended IS NULL OR m.finished_at >= :since::timestamptz
)
SELECT state, code, count(*) AS count, min(id::text) AS id FROM found GROUP BY state, code
