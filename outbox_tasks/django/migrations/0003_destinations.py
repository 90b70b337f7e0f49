from typing import Any, ClassVar

from django.db import migrations

from outbox_tasks.django.migrations import to_version


class Migration(migrations.Migration):  # type: ignore[misc]
    dependencies: ClassVar[list[Any]] = [("outbox_tasks", "0002_inbox_and_reused_ids")]
    operations: ClassVar[list[Any]] = [to_version(3)]
