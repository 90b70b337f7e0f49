"""The outbox tables as a Django app: `INSTALLED_APPS = ["outbox_tasks.django", …]`, then `manage.py migrate`.

They are made in the schema of the setting `database_schema`; none: where the connection's search_path says. There are
no models: write through `Outbox`, and read through the view `outbox_all`."""
