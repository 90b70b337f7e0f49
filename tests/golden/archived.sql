SELECT (
  SELECT count(*) AS count_1
  FROM (
    SELECT %(param_1)s::INTEGER AS anon_1
    FROM outbox_archive
    LIMIT %(bound)s::INTEGER
  ) AS "some"
) AS counted, CAST((
  SELECT sum(greatest(pg_class.reltuples, %(greatest_1)s::INTEGER)) AS sum_1
  FROM pg_inherits
  JOIN pg_class ON pg_class.oid = pg_inherits.inhrelid
  WHERE pg_inherits.inhparent = to_regclass(%(param_2)s)
) AS BIGINT) AS estimated;
-- greatest_1 = 0
-- param_1 = 1
-- param_2 = 'outbox_archive'
