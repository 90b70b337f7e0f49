-- Of each destination: for how many seconds the oldest message with a key has been due, that is not behind another one
-- (oldest), and how many keys a dead letter holds up (held_up). It looks at `most` keys that a claim has not looked at
-- yet, so many that are marked, and so many with a dead letter.
-- blocking: JSON rows of destination, and blocks: whether a dead letter holds up its key.
SELECT a.destination,
       (SELECT date_part('epoch', now()) - date_part('epoch', min(h.since)) FROM (
          SELECT DISTINCT ON (h.key) h.* FROM (
            (SELECT r.key, r.seq, r.since FROM :schema.outbox_ready r
             WHERE r.destination = a.destination AND r.key IS NOT NULL ORDER BY r.seq LIMIT :most::integer)
            UNION ALL
            (SELECT h.key, h.seq, h.since FROM :schema.outbox_held h
             WHERE h.destination = a.destination AND h.free ORDER BY h.seq LIMIT :most)) AS h
          ORDER BY h.key, h.seq) AS h
        WHERE h.since <= now() AND NOT (
          EXISTS (SELECT FROM :schema.outbox_waiting w WHERE w.destination = a.destination AND w.key = h.key AND w.seq < h.seq)
          OR (a.blocks AND EXISTS (SELECT FROM :schema.outbox_dead d
                                   WHERE d.destination = a.destination AND d.key = h.key AND d.seq < h.seq)))) AS oldest,
       (SELECT count(*) FROM (
          \ir parts/held_up.sql
        ) AS d) AS held_up
FROM json_to_recordset(:blocking::json) AS a(destination text, blocks boolean)
