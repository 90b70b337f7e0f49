-- Which outbox this is.
SELECT :schema.outbox_identity()::text AS identity
