-- Destinations that have messages at work and are not `known`: one probe of an index for each. A writer can name any number,
-- so of each table it finds `most` of them, the first ones.
WITH RECURSIVE lane AS (
  (SELECT destination FROM :schema.outbox_ready WHERE key IS NULL AND NOT alone ORDER BY destination LIMIT 1)
  UNION ALL
  SELECT (SELECT r.destination FROM :schema.outbox_ready r WHERE r.key IS NULL AND NOT r.alone AND r.destination > lane.destination
          ORDER BY r.destination LIMIT 1) FROM lane WHERE lane.destination IS NOT NULL
), alone AS (
  (SELECT destination FROM :schema.outbox_ready WHERE alone ORDER BY destination LIMIT 1)
  UNION ALL
  SELECT (SELECT r.destination FROM :schema.outbox_ready r WHERE r.alone AND r.destination > alone.destination
          ORDER BY r.destination LIMIT 1) FROM alone WHERE alone.destination IS NOT NULL
), keyed AS (
  (SELECT destination FROM :schema.outbox_ready WHERE key IS NOT NULL ORDER BY destination LIMIT 1)
  UNION ALL
  SELECT (SELECT r.destination FROM :schema.outbox_ready r WHERE r.key IS NOT NULL AND r.destination > keyed.destination
          ORDER BY r.destination LIMIT 1) FROM keyed WHERE keyed.destination IS NOT NULL
), held AS (
  (SELECT destination FROM :schema.outbox_held ORDER BY destination LIMIT 1)
  UNION ALL
  SELECT (SELECT h.destination FROM :schema.outbox_held h WHERE h.destination > held.destination
          ORDER BY h.destination LIMIT 1) FROM held WHERE held.destination IS NOT NULL
), waiting AS (
  (SELECT destination FROM :schema.outbox_waiting ORDER BY destination LIMIT 1)
  UNION ALL
  SELECT (SELECT w.destination FROM :schema.outbox_waiting w WHERE w.destination > waiting.destination
          ORDER BY w.destination LIMIT 1) FROM waiting WHERE waiting.destination IS NOT NULL
), dead AS (
  (SELECT destination FROM :schema.outbox_dead ORDER BY destination LIMIT 1)
  UNION ALL
  SELECT (SELECT d.destination FROM :schema.outbox_dead d WHERE d.destination > dead.destination
          ORDER BY d.destination LIMIT 1) FROM dead WHERE dead.destination IS NOT NULL
), run AS (
  (SELECT destination FROM :schema.outbox_runs ORDER BY destination LIMIT 1)
  UNION ALL
  SELECT (SELECT r.destination FROM :schema.outbox_runs r WHERE r.destination > run.destination
          ORDER BY r.destination LIMIT 1) FROM run WHERE run.destination IS NOT NULL
)
(SELECT destination FROM lane WHERE destination <> ALL (:known::text[]) LIMIT :most::integer)
UNION (SELECT destination FROM alone WHERE destination <> ALL (:known) LIMIT :most)
UNION (SELECT destination FROM keyed WHERE destination <> ALL (:known) LIMIT :most)
UNION (SELECT destination FROM held WHERE destination <> ALL (:known) LIMIT :most)
UNION (SELECT destination FROM waiting WHERE destination <> ALL (:known) LIMIT :most)
UNION (SELECT destination FROM dead WHERE destination <> ALL (:known) LIMIT :most)
UNION (SELECT DISTINCT destination FROM :schema.outbox_leases WHERE destination <> ALL (:known) LIMIT :most)
UNION (SELECT destination FROM run WHERE destination <> ALL (:known) LIMIT :most)
