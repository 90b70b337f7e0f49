-- Makes the rows that metered.sql and tripped.sql need. names.
INSERT INTO :schema.outbox_destinations (name) SELECT unnest(:names::text[]) ON CONFLICT DO NOTHING
