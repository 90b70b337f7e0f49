-- Takes new messages with keys, as a drain's batch: see outbox_take_new. A row without a number says where the next take may start.
WITH taken AS MATERIALIZED (
  SELECT * FROM :schema.outbox_take_new(:destination::text, :token::uuid, true, :holder::text, :hold::float, :most::integer,
                                        :run::integer, :bytes::bigint, :start::bigint)
)
SELECT h.*, NULL::bigint AS next_start, NULL::bigint AS looked
FROM :schema.outbox_in_hand(ARRAY(SELECT seq FROM taken WHERE lease IS NOT NULL), :largest::integer) AS h
UNION ALL
SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, seq, looked
FROM taken WHERE lease IS NULL
