-- Takes new messages with keys as a drain's batch: see outbox_take_new. largest: a payload with more bytes is not returned.
--
-- life: since when the server counted as it said `start`. If that has changed, the server has crashed, which undoes takes: then this
-- reads from the first message on. One row has no message: it says where the next take may start (next_start),
-- and the life.
WITH taken AS MATERIALIZED (
  SELECT * FROM :schema.outbox_take_new(:destination::text, :token::uuid, true, :holder::text, :hold::float, :most::integer,
                                        :run::integer, :bytes::bigint,
                                        CASE WHEN :life::text = pg_stat_get_bgwriter_stat_reset_time()::text THEN :start::bigint
                                             ELSE 0 END, :reach::integer)
)
SELECT h.*, looked.*
FROM :schema.outbox_leased_messages(ARRAY(SELECT seq FROM taken WHERE lease IS NOT NULL), :largest::integer) AS h
FULL JOIN (
  SELECT seq AS next_start, whole, pg_stat_get_bgwriter_stat_reset_time()::text AS life FROM taken WHERE lease IS NULL
) AS looked ON false
