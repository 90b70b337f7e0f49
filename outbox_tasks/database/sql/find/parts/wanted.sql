-- What is asked of a message m, of its trouble t, and of its state s; null: anything goes. event_type is a pattern for LIKE;
-- older and newer are ages in seconds, as of `until`.
(:states::text[] IS NULL OR s.state = ANY (:states::text[]))
AND (:destination::text IS NULL OR m.destination = :destination::text)
AND (:key::text IS NULL OR m.key = :key::text)
AND (:event_type::text IS NULL OR m.event_type LIKE :event_type::text)
AND (:code::text IS NULL OR t.code = :code::text)
AND (:older::float IS NULL OR m.created_at <= coalesce(:until::timestamptz, now()) - :older::float * interval '1 second')
AND (:newer_than::float IS NULL
     OR m.created_at >= coalesce(:until::timestamptz, now()) - :newer_than::float * interval '1 second')
