INSERT INTO outbox_inbox (consumer, message_id)
VALUES (%(consumer)s::VARCHAR, %(message)s::VARCHAR) ON CONFLICT DO NOTHING
RETURNING outbox_inbox.message_id;
