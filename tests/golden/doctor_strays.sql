SELECT count(*) AS rows
FROM (
  SELECT 1
  FROM outbox_archive_default
  LIMIT %(param_1)s::INTEGER
) AS "some";
-- param_1 = 10000
