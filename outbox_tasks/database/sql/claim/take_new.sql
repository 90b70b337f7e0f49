-- Takes new messages with keys as a drain's batch: see outbox_take_new. largest: a payload with more bytes is not returned.
-- One row has no message: next_start, life and whole of the function.
WITH taken AS MATERIALIZED (
  SELECT * FROM :schema.outbox_take_new(:destination::text, :token::uuid, true, :holder::text, :hold::float, :most::integer,
                                        :of_key::integer, :bytes::bigint, :start::bigint, :life::text, :reach::integer)
)
SELECT h.*, looked.*
FROM :schema.outbox_leased_messages(ARRAY(SELECT seq FROM taken WHERE lease IS NOT NULL), :largest::integer) AS h
FULL JOIN (SELECT next_start, life, whole FROM taken WHERE lease IS NULL) AS looked ON false
