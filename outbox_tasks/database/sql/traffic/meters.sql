-- Makes the row that metered.sql and tripped.sql need. destination.
INSERT INTO :schema.outbox_destinations (name) VALUES (:destination::text) ON CONFLICT DO NOTHING
