-- Notes where an act goes on. entry; place: JSON; pause: seconds until its next batch. What is late catches up for a second.
UPDATE :schema.outbox_acts SET place = :place::text::jsonb,
  due = greatest(due, clock_timestamp() - interval '1 second') + :pause::float * interval '1 second'
WHERE act = :entry::bigint
