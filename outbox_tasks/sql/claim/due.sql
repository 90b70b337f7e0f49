-- Whether a claim may find something to do now: something is ready, a wait is over within `ahead` seconds, a held message may
-- be free; or something is leased, so that a claim sees if the broker has lost it.
--
-- front: JSON rows of destination, priority, xid, seq and until, as `span` of take.sql; keyed: JSON rows of destination and
-- start, as `share` of look_keys.sql; since: of `locked_until`, where an earlier look found no more; known: the configured
-- destinations; null: others are not asked for.
SELECT EXISTS (SELECT FROM :schema.outbox_waiting WHERE due <= now() + :ahead::float * interval '1 second')
    OR EXISTS (SELECT FROM :schema.outbox_leases WHERE locked_until >= :since::timestamptz)
    OR EXISTS (SELECT FROM :schema.outbox_runs WHERE locked_until <= now())
    OR EXISTS (SELECT FROM :schema.outbox_held WHERE free) OR EXISTS (SELECT FROM :schema.outbox_freed)
    OR EXISTS (SELECT FROM json_to_recordset(:front::json) AS f(destination text, priority smallint, xid xid8, seq bigint,
                                                                 until xid8)
               CROSS JOIN LATERAL (SELECT FROM :schema.outbox_ready r
                                   WHERE r.destination = f.destination AND r.priority = f.priority AND r.key IS NULL
                                     AND (r.xid, r.seq) > (f.xid, f.seq) AND r.xid <= f.until LIMIT 1) AS r)
    OR EXISTS (SELECT FROM json_to_recordset(:keyed::json) AS k(destination text, start bigint)
               CROSS JOIN LATERAL (SELECT FROM :schema.outbox_ready r
                                   WHERE r.destination = k.destination AND r.key IS NOT NULL AND r.seq >= k.start LIMIT 1) AS r)
    OR :known::text[] IS NOT NULL AND EXISTS (SELECT FROM :schema.outbox_ready WHERE destination <> ALL (:known))
