-- Makes the row that grant.sql and tripped.sql need. destination.
INSERT INTO :schema.outbox_destinations (name) VALUES (:destination::text) ON CONFLICT DO NOTHING
