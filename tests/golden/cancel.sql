SELECT some_schema.outbox_cancel(%(ids)s::UUID[]) AS outbox_cancel_1;
