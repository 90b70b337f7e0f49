SELECT some_schema.outbox_archive_detach(%(outbox_archive_detach_2)s::VARCHAR) AS outbox_archive_detach_1;
-- outbox_archive_detach_2 = 'outbox_archive_20261120'
