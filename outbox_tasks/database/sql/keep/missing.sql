-- How many messages of a day have not ended, as the journal has it. first, until: its numbers. If nothing of the day is at work,
-- there are none; look/strays.sql names them. Some seconds for ten million messages.
SELECT (SELECT count(*) FROM :schema.outbox_messages WHERE seq >= :first::bigint AND seq < :until::bigint)
     - (SELECT coalesce(sum(j.count), 0) FROM :schema.outbox_journal j WHERE j.first >= :first AND j.first < :until) AS count
