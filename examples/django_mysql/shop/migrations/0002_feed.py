from django.db import migrations
from outbox_tasks.migrations import upgrade_feed


def make_tables(apps: object, editor: object) -> None:
    upgrade_feed(editor.connection)  # type: ignore[attr-defined]


class Migration(migrations.Migration):
    """The tables `outbox_feed` and `outbox_inbox`, in this database."""

    dependencies = [("shop", "0001_initial")]

    operations = [migrations.RunPython(make_tables, migrations.RunPython.noop)]
