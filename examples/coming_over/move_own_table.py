"""Move what a hand-written outbox table has not sent yet into the outbox, in one transaction.

    python move_own_table.py --dry-run    # say what would be moved, and what can't be
    python move_own_table.py

Edit the two statements below, and stop the old relay first. The old table is in the database of OUTBOX_DATABASE_URL.
Either all rows are moved, or none: if one can't be carried, the script names it and ends with exit code 1. You may run
it again at any time: the ids are those of the old rows, so nothing is moved twice.
"""

import json
import sys
from uuid import NAMESPACE_URL, UUID, uuid5

from outbox_tasks import Outbox, OutboxError
from outbox_tasks.errors import MessageRefused
from sqlalchemy import Connection, Row, create_engine, make_url, text

# The rows that wait, in the order in which they are to arrive. The names that this may give are those of `CARRIED`.
PENDING = """
SELECT id, event_type, payload, aggregate_id AS key, created_at
FROM outbox WHERE sent_at IS NULL ORDER BY created_at, id FOR UPDATE
"""

# Marks them as done. To delete them instead: DELETE FROM outbox WHERE id = ANY (:ids)
DONE = "UPDATE outbox SET sent_at = now() WHERE id = ANY (:ids)"

# What is said of a row beside its id, event_type and payload.
OPTIONS = {"key", "to", "headers", "priority", "deliver_at", "aggregate_type", "aggregate_id", "content_type"}
CARRIED = {"id", "event_type", "payload", "created_at", *OPTIONS}


class CannotCarry(Exception):
    """Why a row can't be a message."""


def main() -> int:
    outbox = Outbox()
    url = make_url(outbox.settings.database_url or "").set(drivername="postgresql+psycopg")
    with create_engine(url).connect() as connection, connection.begin() as transaction:
        rows = connection.execute(text(PENDING)).all()
        refused = [reason for row in rows if (reason := move(outbox, connection, row))]
        for reason in refused:
            print(reason, file=sys.stderr)
        if refused:
            print(f"Nothing is moved: {len(refused)} of {len(rows)} rows can't be carried.", file=sys.stderr)
            transaction.rollback()
        elif "--dry-run" in sys.argv[1:]:
            print(f"{len(rows)} rows would be moved.")
            transaction.rollback()
        else:
            connection.execute(text(DONE), {"ids": [row.id for row in rows]})
            print(f"{len(rows)} rows moved.")
    return 1 if refused else 0


def move(outbox: Outbox, connection: Connection, row: Row) -> str | None:
    """Publish a row as it stands; returns why it can't be done."""
    given = row._asdict()
    if unknown := given.keys() - CARRIED:
        sys.exit(
            f"PENDING gives {', '.join(sorted(unknown))}, which no message has. Known: {', '.join(sorted(CARRIED))}."
        )
    options = {name: given[name] for name in OPTIONS & given.keys() if given[name] is not None}
    try:
        payload = body(row.payload, options)
        outbox.publish(connection, row.event_type, payload, id=stable_id(row.id), **options)
    except (CannotCarry, MessageRefused) as error:  # nothing was written
        return f"row {row.id}: {error}"
    except OutboxError as error:  # the transaction is over: for example, another message has this id
        sys.exit(f"row {row.id}: {error} Nothing is moved.")
    return None


def stable_id(old: object) -> UUID:
    """The old row's id, if it is a UUID. Otherwise one that is made of it, the same each time."""
    try:
        return UUID(str(old))
    except ValueError:
        return uuid5(NAMESPACE_URL, f"outbox/{old}")


def body(payload: object, options: dict[str, object]) -> object:
    """The payload to publish. Text that says nothing else of itself must be JSON, and travels unchanged."""
    if payload is None:
        raise CannotCarry("it has no payload")
    if isinstance(payload, str) and "content_type" not in options:
        try:
            json.loads(payload)
        except ValueError:
            raise CannotCarry("its payload is not JSON; let PENDING say what it is, AS content_type") from None
        options["content_type"] = "application/json"
    return payload


if __name__ == "__main__":
    sys.exit(main())
