SELECT some_schema.outbox_archive_share() AS outbox_archive_share_1;
