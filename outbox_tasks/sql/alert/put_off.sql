-- Posts alerts again after a wait that doubles each time, up to five minutes; after `most` tries never.
-- names; lease: their `post_at`; wait: seconds, the first time.
UPDATE :schema.outbox_alerts a
SET post_at = CASE WHEN a.posts < :most::integer
                   THEN now() + least(300, :wait::float * power(2, least(a.posts - 1, 20))) * interval '1 second' END
WHERE a.name = ANY (:names::text[]) AND a.post_at = :lease::timestamptz
RETURNING a.name, a.post_at
