-- The first rows that may be copied, by number, with their age in seconds; no more than `size` bytes of messages. Run it
-- after marks.sql, at READ COMMITTED.
--
-- high; floors: JSON, the lowest floor of each class that has marks; all_: of the class of all keys, or null. most: rows.
SELECT number, id::text, ordering_key, extract(epoch FROM clock_timestamp() - created_at)::float, message
FROM :schema.outbox_feed
WHERE number IN (
  SELECT number FROM (
    SELECT number, sum(octet_length(message)) OVER (ORDER BY number) - octet_length(message) AS before
    FROM (
      SELECT number, message FROM :schema.outbox_feed
      WHERE number <= :high AND (ordering_key IS NULL OR number <= coalesce(
        least(:all_::bigint, (:floors::jsonb ->> (1 + abs(hashtext(ordering_key) % 65535))::text)::bigint), :high))
      ORDER BY number LIMIT :most
    ) AS first
  ) AS summed
  WHERE before < :size
)
ORDER BY number
