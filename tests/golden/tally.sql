INSERT INTO outbox_tallies (minute, destination, outcome, count)
SELECT at.minute, at.destination, at.outcome, CAST(sum(at.count) AS BIGINT) AS sum_1
FROM (
  SELECT date_trunc('minute', now() - counted.ago * interval '1 second') AS minute, counted.ago AS ago, counted.destination AS destination, counted.outcome AS outcome, counted.count AS count
  FROM json_to_recordset(CAST(%(counted)s::VARCHAR AS JSON)) AS counted(ago FLOAT, destination TEXT, outcome TEXT, count BIGINT)
  WHERE (SELECT set_config(%(set_config_2)s::VARCHAR, %(set_config_3)s::VARCHAR, %(set_config_4)s) AS set_config_1) = %(param_1)s::VARCHAR
) AS at GROUP BY at.minute, at.destination, at.outcome
ORDER BY at.minute, at.destination, at.outcome ON CONFLICT (minute, destination, outcome) DO
UPDATE
SET count = (outbox_tallies.count + excluded.count)
RETURNING outbox_tallies.destination;
-- param_1 = 'off'
-- set_config_2 = 'synchronous_commit'
-- set_config_3 = 'off'
-- set_config_4 = True
