from typing import Any, ClassVar

from django.db import migrations, models

from outbox_tasks.django.migrations import tables
from outbox_tasks.django.permissions import PERMISSIONS


class Migration(migrations.Migration):  # type: ignore[misc]
    dependencies: ClassVar[list[Any]] = []
    operations: ClassVar[list[Any]] = [
        tables(),
        migrations.CreateModel(
            name="Page",
            fields=[("id", models.BigAutoField(primary_key=True, auto_created=True, serialize=False))],
            options={"permissions": PERMISSIONS, "managed": False, "default_permissions": ()},
        ),
        # What the admin shows: no tables either.
        migrations.CreateModel(
            name="Message",
            fields=[
                ("id", models.UUIDField(primary_key=True, serialize=False)),
                *((name, models.TextField()) for name in ("event_type", "destination", "state")),
                ("key", models.TextField(null=True)),
                ("attempts", models.IntegerField()),
                ("last_error_code", models.TextField(null=True, verbose_name="error code")),
                ("last_error", models.TextField(null=True, verbose_name="error")),
                ("created_at", models.DateTimeField(verbose_name="written")),
                ("dead_at", models.DateTimeField(null=True, verbose_name="dead since")),
                ("finished_at", models.DateTimeField(null=True, verbose_name="finished")),
            ],
            options={"managed": False, "default_permissions": (), "db_table": "outbox_all"},
        ),
        migrations.CreateModel(
            name="DeadLetter",
            fields=[],
            options={
                "proxy": True,
                "default_permissions": (),
                "verbose_name": "dead letter",
                "indexes": [],
                "constraints": [],
            },
            bases=("outbox_tasks.message",),
        ),
    ]
