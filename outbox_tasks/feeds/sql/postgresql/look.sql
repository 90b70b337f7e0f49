-- The first rows that may be copied, by number; no more than `enough` bytes of them. Run it after marks.sql, at READ
-- COMMITTED.
--
-- high; floors: JSON, the lowest floor of each class that has marks; all_: of the class of all keys, or null. most: rows.
-- largest: bytes of a message that is read as a whole; of another one its beginning. Returns also the bytes of the message.
SELECT number, id::text, left(ordering_key, 256), octet_length(message),
       CASE WHEN octet_length(message) > :largest THEN left(message, 100000) ELSE message END
FROM :schema.outbox_feed
WHERE number IN (
  SELECT number FROM (
    SELECT number, sum(size) OVER (ORDER BY number) - size AS before
    FROM (
      SELECT number, octet_length(message) + coalesce(octet_length(ordering_key), 0) AS size FROM :schema.outbox_feed
      WHERE number <= :high AND (ordering_key IS NULL OR number <= coalesce(
        least(:all_::bigint, (:floors::jsonb ->> (1 + abs(hashtext(ordering_key) % 65535))::text)::bigint), :high))
      ORDER BY number LIMIT :most
    ) AS first
  ) AS summed
  WHERE before < :enough
)
ORDER BY number
