-- Notes that all that was copied is deleted at the source. Changes nothing if another bridge has the lease by now.
UPDATE :schema.outbox_copied c SET deleted = true FROM :schema.outbox_feeds f
WHERE c.feed = :feed AND NOT c.deleted AND f.name = c.feed AND f.token = :token::uuid
