SELECT CAST(some_schema.outbox_identity() AS TEXT) AS outbox_identity_1;
