-- Destinations that have messages at work and are not `known`, in the order of their names, up to `most` of them: a writer can name
-- any number. It goes from each name to the next one, with one probe of an index in each table.
WITH RECURSIVE leased AS MATERIALIZED (
  SELECT DISTINCT destination FROM :schema.outbox_leases
), present AS (
  SELECT '' AS destination  -- before all names
  UNION ALL
  SELECT n.destination
  FROM present p CROSS JOIN LATERAL (
    SELECT min(d) AS destination FROM (VALUES
      ((SELECT r.destination FROM :schema.outbox_ready r WHERE r.key IS NULL AND NOT r.alone
        AND r.destination > p.destination ORDER BY r.destination LIMIT 1)),
      ((SELECT r.destination FROM :schema.outbox_ready r WHERE r.alone AND r.destination > p.destination
        ORDER BY r.destination LIMIT 1)),
      ((SELECT r.destination FROM :schema.outbox_ready r WHERE r.key IS NOT NULL AND r.destination > p.destination
        ORDER BY r.destination LIMIT 1)),
      ((SELECT h.destination FROM :schema.outbox_held h WHERE h.destination > p.destination
        ORDER BY h.destination LIMIT 1)),
      ((SELECT w.destination FROM :schema.outbox_waiting w WHERE w.destination > p.destination
        ORDER BY w.destination LIMIT 1)),
      ((SELECT d.destination FROM :schema.outbox_dead d WHERE d.destination > p.destination
        ORDER BY d.destination LIMIT 1)),
      ((SELECT r.destination FROM :schema.outbox_runs r WHERE r.destination > p.destination
        ORDER BY r.destination LIMIT 1)),
      ((SELECT min(l.destination) FROM leased l WHERE l.destination > p.destination))
    ) AS names(d)
  ) AS n
  WHERE p.destination IS NOT NULL
)
SELECT destination FROM present WHERE destination <> '' AND destination <> ALL (:known::text[]) LIMIT :most::integer
