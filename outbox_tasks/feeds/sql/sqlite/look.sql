-- The first rows, by number. Whoever writes has the whole database, so no earlier row comes later.
--
-- most: rows. largest: bytes of a message that is read as a whole; of another one its beginning. Returns also the bytes of
-- the message, by a CAST: the length of a text with a NUL would end at the NUL.
SELECT number, id, substr(ordering_key, 1, 256), length(CAST(message AS BLOB)),
       CASE WHEN length(CAST(message AS BLOB)) > :largest THEN substr(message, 1, 100000) ELSE message END
FROM :schema.outbox_feed
ORDER BY number
LIMIT :most
