-- Of each destination: for how many seconds the oldest message with a key has been due, that is not behind another one
-- (oldest), and how many keys a dead letter holds up (held_up). It looks at the first `most` messages that no take has looked at
-- yet, at so many keys that are free, and at so many that stand behind a dead letter.
-- blocking: JSON rows of destination, and blocks: whether a dead letter holds up its key.
SELECT a.destination,
       (SELECT date_part('epoch', now()) - date_part('epoch', min(h.since)) FROM (
          SELECT DISTINCT ON (h.key) h.* FROM (
            (SELECT r.key, r.seq, r.since FROM :schema.outbox_ready r
             WHERE r.destination = a.destination AND r.key IS NOT NULL ORDER BY r.seq LIMIT :most::integer)
            UNION ALL
            SELECT k.key, h.seq, h.since FROM (
              SELECT key, first FROM :schema.outbox_keys
              WHERE destination = a.destination AND token IS NULL AND due <= now() ORDER BY due LIMIT :most) AS k
            CROSS JOIN LATERAL (
              SELECT h.seq, h.since FROM :schema.outbox_held h
              WHERE h.destination = a.destination AND h.key = k.key AND h.seq >= k.first ORDER BY h.seq LIMIT 1) AS h) AS h
          ORDER BY h.key, h.seq) AS h
        WHERE h.since <= now() AND NOT EXISTS (
          SELECT FROM :schema.outbox_keys k
          WHERE k.destination = a.destination AND k.key = h.key AND (k.token IS NOT NULL OR k.due > now()))) AS oldest,
       (SELECT count(*) FROM (
          \ir parts/held_up.sql
        ) AS d) AS held_up
FROM json_to_recordset(:blocking::json) AS a(destination text, blocks boolean)
