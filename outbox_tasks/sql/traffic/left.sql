-- Removes a process that no longer sends. holders: its names.
DELETE FROM :schema.outbox_publishers WHERE holder = ANY (:holders::text[])
