SELECT some_schema.outbox_archive_drop(%(outbox_archive_drop_2)s::VARCHAR) AS outbox_archive_drop_1;
-- outbox_archive_drop_2 = 'outbox_archive_gone_20261120'
