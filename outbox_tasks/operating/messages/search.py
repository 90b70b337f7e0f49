"""One search for what people have in hand of a message: an id, a Celery task, an event, an aggregate or a key. The
command `show` and the page's search box ask it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from outbox_tasks.database.connection import Database
from outbox_tasks.database.schema import where
from outbox_tasks.errors import InvalidFilter
from outbox_tasks.model import MAX_TEXT_CHARACTERS, sibling
from outbox_tasks.operating.audit import deed
from outbox_tasks.operating.days import days
from outbox_tasks.operating.messages.find import ARCHIVED, LAST_NUMBER, MESSAGES, Filter, Lookup
from outbox_tasks.operating.messages.paging import read_page
from outbox_tasks.operating.messages.waits import Examined
from outbox_tasks.text import is_text, moment, one_line, redacted, shell_line, some, span

FOUND_AT_MOST = 20
"""Messages of each kind that are looked for."""

BEGINNING = re.compile("[0-9a-f]{8}(-[0-9a-f]{0,4}){0,3}(-[0-9a-f]{0,12})?")
"""The beginning of an id: at least its first group."""

KINDS = {
    "id": "its id", "event": "its event", "beginning": "its id begins so", "task": "its Celery task",
    "aggregate": "its aggregate", "key": "its key",
}  # fmt: skip
"""What a text is to a message."""


@dataclass(slots=True)
class Answer:
    """What a search has found."""

    text: str
    messages: list[dict[str, Any]] = field(default_factory=list)
    """As in a list, those at work first, then the latest. Also `kinds`: what the text is to the message (see
    `KINDS`), and `waits`: if there are several, why the first ones are where they are."""
    more: bool = False
    """Whether there may be more messages than these."""
    reasons: list[str] = field(default_factory=list)
    """If nothing was found: what may be the case."""
    event_type: bool = False
    """Whether no message has this name, but some of the latest messages have it as their event type."""

    @property
    def only(self) -> UUID | None:
        """The one message that was meant; None: none was found, or several."""
        exact = [message["id"] for message in self.messages if "id" in message["kinds"]]
        found = exact or [message["id"] for message in self.messages]
        return found[0] if len(found) == 1 else None


def search(database: Database, text: str, examined: Examined | None = None, *, limit: float | None = None) -> Answer:
    """The messages that a text names. `limit`: seconds that a statement may run; `examined`: see `Reasons`. Raises
    `InvalidFilter`."""
    text = text.strip()
    if not text or not is_text(text) or len(text) > MAX_TEXT_CHARACTERS:
        raise InvalidFilter(reason=f"a search needs a text of 1 to {MAX_TEXT_CHARACTERS} characters, without NUL")
    answer = Answer(text)
    kinds = _named(database, answer, limit)
    seen = set()
    for row in database.ask("find/states.sql", limit, ids=[*kinds]):
        if row.id not in seen:  # of a message that was replayed, the copy that waits comes first
            seen.add(row.id)
            answer.messages.append({**row._asdict(), "kinds": kinds[row.id], "waits": None})
    if answer.only is None:
        lookup = Lookup(database, examined)
        for message in [message for message in answer.messages if message["state"] not in ARCHIVED][:5]:
            message["waits"] = lookup.one(message["id"], 0)["waits"]
    if not answer.messages:
        latest = {"newer": False, "last": LAST_NUMBER, "look": 1_000, "size": 1}
        rows = database.ask(MESSAGES, limit, **Filter(event_type=text).parameters, **latest)
        answer.event_type = len(rows) > 1  # the last row is no message
        answer.reasons = list(_reasons(database, answer))
    return answer


def _named(database: Database, answer: Answer, limit: float | None) -> dict[UUID, list[str]]:
    """What the text is to which messages, by their ids."""
    text, low, high = answer.text, None, None
    id = _uuid_of(text)
    if id is None and BEGINNING.fullmatch(text.lower()):
        digits = text.lower().replace("-", "")
        low, high = UUID(digits.ljust(32, "0")), UUID(digits.ljust(32, "f"))
    events = [] if id is None else [sibling(id, name) for name in database.settings.destinations]
    asked = {"id": id, "siblings": events, "low": low, "high": high, "text": str(id or text), "most": FOUND_AT_MOST + 1}
    rows = database.ask("find/search.sql", limit, **asked)
    kinds = {row.id: list(row.kinds) for row in rows}
    counts = [sum(kind in found for found in kinds.values()) for kind in ("beginning", "task", "aggregate", "key")]
    answer.more = max(counts) > FOUND_AT_MOST
    if counts[-1] > FOUND_AT_MOST:  # these are some of them; people want the latest
        latest = read_page(database, Filter(key=text), FOUND_AT_MOST, limit=limit)
        kinds = {message["id"]: ["key"] for message in latest.messages} or kinds
    return kinds


def _reasons(database: Database, answer: Answer) -> Iterator[str]:
    """What may be the case with a message that is not here, those first that say the most about this text."""
    text, settings = answer.text, database.settings
    if text in settings.destinations:
        yield f"It is a destination: {shell_line('list', '--destination', text)}"
    if answer.event_type:
        yield f"It is an event type: {shell_line('list', '--type', text)}"
    for act in database.ask("audit/about.sql", target=str(_uuid_of(text) or text), named=[]):
        yield f"At {moment(act.at)} {one_line(act.who)} did this to it: {deed(act._asdict())}."
    asked = {"place": settings.database_schema, "destination": None, "key": None, "seq": None}
    sessions = [
        f"session {row.pid} ({one_line(row.application or 'a client')}, {'?' if row.age is None else span(row.age)})"
        for row in database.ask("doctor/open_writers.sql", **asked)
        if row.age is None or row.age > 1  # others come and go all the time
    ]
    if sessions:
        yield f"It is not committed yet. Transactions that wrote here and are open: {some(sessions)}."
    else:
        yield "It was rolled back, or never published: no transaction that has written here is open now."
    for oldest in days(database)[:1]:
        keeps = settings.archive_retention
        kept = f"what was sent or discarded stays for {span(keeps)}" if keeps else "no archive is deleted here"
        yield f"It has left the archive: {kept}, and the oldest messages here are of {moment(oldest.began_at)}."
    here = f"{redacted(settings.database_url or '')}, {where(settings.database_schema)}"
    yield f"It was written to another database or schema than this one ({here})."


def _uuid_of(text: str) -> UUID | None:
    """The UUID that a text is; None: it is none."""
    try:
        return UUID(text)
    except ValueError:
        return None
