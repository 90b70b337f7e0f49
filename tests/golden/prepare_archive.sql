SELECT some_schema.outbox_archive_prepare(%(outbox_archive_prepare_2)s::INTEGER) AS outbox_archive_prepare_1;
-- outbox_archive_prepare_2 = 7
