INSERT INTO outbox_messages (id, event_type, destination, payload, content_type)
VALUES (CAST(%(id)s::VARCHAR AS UUID), %(event_type)s::VARCHAR, %(destination)s::VARCHAR, CAST(%(payload)s AS BYTEA), %(content_type)s::VARCHAR);
