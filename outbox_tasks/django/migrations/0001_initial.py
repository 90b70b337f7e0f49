from typing import Any, ClassVar

from django.db import migrations, models

from outbox_tasks.database.schema import FIRST
from outbox_tasks.django.migrations import to_version


class Migration(migrations.Migration):  # type: ignore[misc]
    dependencies: ClassVar[list[Any]] = []
    operations: ClassVar[list[Any]] = [
        to_version(FIRST),
        migrations.CreateModel(
            name="Page",
            fields=[("id", models.BigAutoField(primary_key=True, auto_created=True, serialize=False))],
            options={
                "permissions": (
                    ("look", "Can look at the outbox"),
                    ("payload", "Can read payloads and headers of messages"),
                    ("act", "Can redrive, discard, edit and cancel messages, and pause destinations"),
                ),
                "managed": False,
                "default_permissions": (),
            },
        ),
    ]
