-- The ids of the messages that a text names, each with what it is to them (kinds): `id`, `event` (the id of an event with several
-- destinations), `beginning` (of an id), `task` (the id of a Celery task), `aggregate` or `key`. At most `most` of each kind.
--
-- id (null: the text is none); siblings: the ids that an event with this id has at other destinations; low, high: the first and
-- last id that begins so (null: no id does); text; most. Indexes: outbox_messages (id), of each day; outbox_messages_about.
WITH found AS (
  SELECT m.id, 'id' AS kind FROM :schema.outbox_messages m WHERE m.id = :id::uuid
  UNION ALL
  SELECT m.id, 'event' FROM :schema.outbox_messages m WHERE m.id = ANY (:siblings::uuid[])
  UNION ALL
  (SELECT m.id, 'beginning' FROM :schema.outbox_messages m
   WHERE m.id >= :low::uuid AND m.id <= :high::uuid ORDER BY m.id DESC LIMIT :most::integer)
  UNION ALL
  SELECT m.id, CASE WHEN m.key = :text::text THEN 'key' WHEN m.aggregate_type = 'celery.task' THEN 'task' ELSE 'aggregate' END
  FROM :schema.outbox_about(:text::text, :most::integer) AS s
  CROSS JOIN LATERAL (
    SELECT m.id, m.key, m.aggregate_type FROM :schema.outbox_messages m WHERE m.seq = s LIMIT 1
  ) AS m
)
SELECT id, array_agg(DISTINCT kind) AS kinds FROM found GROUP BY id
