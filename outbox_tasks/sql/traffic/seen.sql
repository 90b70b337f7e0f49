-- Notes that this process sends, and counts the other processes that do. holders: the names of this process, one for each
-- of its threads; recent: seconds for which a process counts.
WITH here AS (
  INSERT INTO :schema.outbox_publishers (holder, seen_at)
  SELECT h, clock_timestamp() FROM unnest(:holders::text[]) AS h WHERE set_config('synchronous_commit', 'off', true) = 'off'
  ON CONFLICT (holder) DO UPDATE SET seen_at = excluded.seen_at
)
SELECT count(*) AS count FROM :schema.outbox_publishers
WHERE seen_at > now() - :recent::float * interval '1 second' AND holder <> ALL (:holders)
