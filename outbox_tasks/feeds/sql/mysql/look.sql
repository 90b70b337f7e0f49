-- The committed rows, by number, no more than `enough` bytes of them: run it at READ COMMITTED, after all.sql.
--
-- after; high: numbers. largest: bytes of a message that is read as a whole; of another one its beginning. Returns also the
-- bytes of the message.
SELECT number, id, ordering_key, octet_length(message),
       CASE WHEN octet_length(message) > :largest THEN left(message, 100000) ELSE message END
FROM :schema.outbox_feed
JOIN (
  SELECT number, sum(octet_length(message)) OVER (ORDER BY number) - octet_length(message) AS before_
  FROM :schema.outbox_feed WHERE number > :after AND number <= :high
) AS summed USING (number)
WHERE before_ < :enough
ORDER BY number
