INSERT INTO outbox_messages (id, event_type, aggregate_type, aggregate_id, destination, key, payload, content_type, headers)
VALUES (%(id)s::UUID, %(event_type)s::VARCHAR, %(aggregate_type)s::VARCHAR, %(aggregate_id)s::VARCHAR, %(destination)s::VARCHAR, %(key)s::VARCHAR, %(payload)s, %(content_type)s::VARCHAR, %(headers)s::JSONB);
