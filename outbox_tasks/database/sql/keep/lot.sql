-- Where the next lot of a day's messages ends: of so many bytes of payload as fit into memory, or one message. Null: there is
-- none. after, until: numbers; most: messages; bytes.
SELECT max(seq) AS last FROM (
  SELECT seq, sum(size) OVER (ORDER BY seq) AS so_far, row_number() OVER (ORDER BY seq) AS place
  FROM (SELECT m.seq, octet_length(m.payload) AS size FROM :schema.outbox_messages m
        WHERE m.seq > :after::bigint AND m.seq < :until::bigint ORDER BY m.seq LIMIT :most::integer) AS m
) AS m WHERE so_far <= :bytes::bigint OR place = 1
