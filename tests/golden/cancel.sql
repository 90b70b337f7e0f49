SELECT some_schema.outbox_cancel(CAST(%(ids)s::VARCHAR AS UUID[])) AS outbox_cancel_1;
