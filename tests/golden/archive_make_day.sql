SELECT some_schema.outbox_archive_make_day(CAST(%(param_1)s::TIMESTAMP WITH TIME ZONE AS TIMESTAMP WITH TIME ZONE)) AS outbox_archive_make_day_1;
-- param_1 = datetime.datetime(2026, 11, 20, 0, 0, tzinfo=datetime.timezone.utc)
