-- Takes held messages of free keys as a drain's batch: see outbox_take_held. largest: a payload with more bytes is not returned.
WITH taken AS MATERIALIZED (
  SELECT * FROM :schema.outbox_take_held(:destination::text, :token::uuid, true, :holder::text, :hold::float, :most::integer,
                                         :of_key::integer, :bytes::bigint, :free_since::timestamptz, :blocks::boolean)
)
SELECT h.*, looked.*
FROM :schema.outbox_leased_messages(ARRAY(SELECT seq FROM taken WHERE lease IS NOT NULL), :largest::integer) AS h
FULL JOIN (SELECT all_before FROM taken WHERE lease IS NULL) AS looked ON false
