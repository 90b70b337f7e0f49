-- Deletes rows that were copied, each found by its number. Without the forced index the servers scan small tables, and
-- then they wait for rows that are not committed.
--
-- rows: JSON pairs of a number and an id. A database that was restored may have given a number to another row.
DELETE feed
FROM json_table(:rows, '$[*]' COLUMNS (number bigint PATH '$[0]', id char(36) PATH '$[1]')) AS copied
STRAIGHT_JOIN :schema.outbox_feed AS feed FORCE INDEX (PRIMARY) ON feed.number = copied.number AND feed.id = copied.id
