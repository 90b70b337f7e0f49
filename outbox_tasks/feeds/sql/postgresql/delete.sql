-- Deletes rows that were copied.
--
-- rows: JSON pairs of a number and an id. A database that was restored may have given a number to another row.
DELETE FROM :schema.outbox_feed AS feed
USING json_array_elements(:rows::json) AS copied
WHERE feed.number = (copied ->> 0)::bigint AND feed.id = (copied ->> 1)::uuid
