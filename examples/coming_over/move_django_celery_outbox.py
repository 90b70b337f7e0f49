"""Move the tasks that django-celery-outbox has not sent yet into the outbox, in one transaction.

    python move_django_celery_outbox.py shop.celery:app --dry-run    # say what would be moved, and what can't be
    python move_django_celery_outbox.py shop.celery:app

Before that, stop the old relay (`celery_outbox_relay`), and make the app a plain `celery.Celery` again. The old tables
are in the database of the outbox. Either all tasks are moved, or none: if one can't be carried, the script names it and
ends with exit code 1. Each task keeps its id. You may run the script again at any time: a task whose id is in the
outbox is not moved again.

Written for the tables of django-celery-outbox 0.4.3.
"""

import sys
from datetime import datetime, timedelta

from celery import Celery
from celery.app.utils import find_app
from celery.canvas import Signature
from outbox_tasks import Outbox, OutboxError
from outbox_tasks.errors import MessageRefused
from sqlalchemy import Connection, Row, create_engine, make_url, text

LOCK = "LOCK TABLE celery_outbox IN EXCLUSIVE MODE"
PENDING = """
SELECT *, updated_at > now() - interval '5 minutes' AND retry_after IS NULL AS at_work FROM celery_outbox ORDER BY id
"""
KNOWN = "SELECT aggregate_id FROM outbox_all WHERE aggregate_id = ANY (:ids)"  # of a stored task: its id
DONE = "DELETE FROM celery_outbox"
DEAD = "SELECT count(*) FROM celery_outbox_dead_letter"
FORMAT = 1  # the schema_version of rows that we can read


class CannotCarry(Exception):
    """Why a row can't be a stored task."""


def main() -> int:
    app = find_app(next(argument for argument in sys.argv[1:] if not argument.startswith("-")))
    if type(app).send_task is not Celery.send_task:
        sys.exit(f"{type(app).__name__} still stores tasks in the old table. Make the app a celery.Celery first.")
    outbox = Outbox(celery=app)
    url = make_url(outbox.settings.database_url or "").set(drivername="postgresql+psycopg")
    with create_engine(url).connect() as connection, connection.begin() as transaction:
        connection.execute(text(LOCK))
        rows = connection.execute(text(PENDING)).all()
        known = set(connection.scalars(text(KNOWN), {"ids": [row.task_id for row in rows]}))
        new = [row for row in rows if row.task_id not in known]
        refused = [reason for row in new if (reason := move(outbox, connection, row))]
        for reason in refused:
            print(reason, file=sys.stderr)
        if refused:
            print(f"Nothing is moved: {len(refused)} of {len(new)} tasks can't be carried.", file=sys.stderr)
            transaction.rollback()
            return 1
        dead = connection.scalar(text(DEAD))
        if "--dry-run" in sys.argv[1:]:
            print(f"{len(new)} tasks would be moved.")
            transaction.rollback()
        else:
            connection.execute(text(DONE))
            print(f"{len(new)} tasks moved; {len(rows) - len(new)} had been moved before.")
        print(f"{dead} dead letters stay in celery_outbox_dead_letter.")
    return 0


def move(outbox: Outbox, connection: Connection, row: Row) -> str | None:
    """Store a task as it stands; returns why it can't be done."""
    try:
        options = call_options(row, outbox.celery)
        outbox.apply_async(connection, row.task_name, row.args, row.kwargs, task_id=row.task_id, **options)
    except (CannotCarry, MessageRefused, ValueError, TypeError, KeyError) as error:  # nothing was written
        return f"row {row.id}, task {row.task_name}: {error}"
    except OutboxError as error:  # the transaction is over
        sys.exit(f"row {row.id}, task {row.task_name}: {error} Nothing is moved.")
    return None


def call_options(row: Row, app: Celery | None) -> dict[str, object]:
    """The options with which the old relay would have called the task."""
    if row.schema_version != FORMAT:
        raise CannotCarry(f"its format is {row.schema_version}, and this script reads format {FORMAT}")
    if row.at_work:
        raise CannotCarry("the old relay is sending it. Stop that relay, and wait five minutes")
    options = dict(row.options)
    options.pop("timeout", None)
    if "eta" in options:
        options["eta"] = datetime.fromisoformat(options["eta"])
    if isinstance(expires := options.get("expires"), str):
        options["expires"] = datetime.fromisoformat(expires)
    elif expires is not None:  # seconds, since the call
        options["expires"] = row.created_at + timedelta(seconds=expires)
    for name in ("link", "link_error", "chain"):
        if name in options:
            options[name] = [Signature.from_dict(signature, app=app) for signature in options[name]]
    if "chord" in options:
        options["chord"] = Signature.from_dict(options["chord"], app=app)
    headers = dict(options.get("headers") or {})
    if row.sentry_trace_id:
        headers["sentry-trace"] = row.sentry_trace_id
    if row.sentry_baggage:
        headers["baggage"] = row.sentry_baggage
    return {**options, "headers": headers}


if __name__ == "__main__":
    sys.exit(main())
