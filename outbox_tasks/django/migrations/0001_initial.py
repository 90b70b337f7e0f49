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
    ]
