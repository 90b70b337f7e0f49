-- The version of the tables; null: they were emptied.
SELECT max(version) AS version FROM :schema.outbox_versions
