-- Makes the rows that metered.sql needs. names.
INSERT INTO :schema.outbox_destinations (name) SELECT unnest(:names::text[]) ON CONFLICT DO NOTHING
