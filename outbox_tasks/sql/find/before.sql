-- How many messages of its destination and priority are taken before one that is due and has no key, counted up to `most`; null: it
-- is not in ready any more. seq. Indexes: outbox_ready (seq), then its lane.
SELECT (SELECT count(*) FROM (
          SELECT FROM :schema.outbox_ready r
          WHERE r.destination = own.destination AND r.priority = own.priority AND r.key IS NULL AND NOT r.alone
            AND (r.xid, r.seq) < (own.xid, own.seq) LIMIT :most::integer) AS b) AS count
FROM (SELECT r.destination, r.priority, r.xid, r.seq FROM :schema.outbox_ready r WHERE r.seq = :seq::bigint) AS own
