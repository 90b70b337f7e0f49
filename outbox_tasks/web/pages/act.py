"""Acts on messages: a preview, a form with a reason, and one act, as it goes on and when it has ended; and the audit.

There are three acts. Redrive sends dead letters again. Try sends at once what waits for another attempt. Discard gives
messages up; for a message that still waits, that is what `outbox.cancel` does, with an entry in the audit.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from uuid import UUID, uuid4

from pydantic import AwareDatetime, BaseModel, Field, ValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from outbox_tasks.errors import ActRefused
from outbox_tasks.operating import audit
from outbox_tasks.operating.messages import filters
from outbox_tasks.operating.messages.find import DEAD, Became, Lookup
from outbox_tasks.operating.messages.preview import Choice, preview
from outbox_tasks.web import overview
from outbox_tasks.web.visit import ROWS_SHOWN, Visit

PREVIEW_SECONDS = 0.2
"""How long a preview counts: a page should be there at once."""

END_SECONDS = 1.0
"""How long a form waits for the end of an act on named messages."""

ABOUT = {
    "redrive": "A redriven message is sent again at once, with all its attempts.",
    "try": "A message that waits for another attempt is due at once. Its attempts and the order of its key stay.",
    "discard": "A discarded message goes to the archive and is not sent. What waits behind it in its key goes on.",
}
"""What each act does."""


class Form(BaseModel):
    """How an act is done."""

    token: UUID
    until: AwareDatetime | None = None
    total: int | None = Field(None, ge=0, le=1_000_000_000)
    rate: float | None = Field(None, ge=0.01, le=100_000, allow_inf_nan=False)
    """Messages a second."""
    limit: int | None = Field(None, ge=1, le=1_000_000_000)


def choice_of(fields: Mapping[str, list[str]]) -> Choice:
    """What an address or a form says. Raises `ActRefused` or `InvalidFilter`."""
    action: Any = (fields.get("action") or [""])[0]
    if action not in filters.CHANGEABLE:
        raise ActRefused(reason=f"the acts are {', '.join(filters.CHANGEABLE)}")
    wanted, ids = filters.asked(fields), filters.ids_of(fields.get("id", []))
    if "chosen" in fields and not ids:
        raise ActRefused(reason="no message was chosen; go back to the list and choose some")
    if len(ids) > ROWS_SHOWN:
        raise ActRefused(reason=f"at most {ROWS_SHOWN} messages can be named; choose more of them by a filter")
    if ids and wanted.facts:
        raise ActRefused(reason="name the messages, or choose them by a filter, not both")
    return Choice(action, filters.for_act(action, wanted, named=bool(ids)), ids)


def new(visit: Visit) -> Response:
    """The preview: which messages, how many, of which kinds."""
    return _preview(visit, choice_of(visit.query))


def _preview(visit: Visit, choice: Choice, refused: str | None = None) -> Response:
    outlook = preview(visit.store, choice, seconds=PREVIEW_SECONDS)
    plan = outlook.plan
    filled_in = {name: visit.form_value(name) or visit.query_value(name) for name in ("why", "rate", "limit")}
    return visit.show(
        "act_new.html",
        status=200 if refused is None else 400,
        again=None,
        refused=refused,
        choice=choice,
        about=ABOUT[choice.action],
        chosen=audit.facts_of({"facts": choice.wanted.facts}),
        done=filters.DONE[choice.action],
        preview=outlook,
        kinds=plan.kinds[:ROWS_SHOWN] if plan else [],
        filled_in=filled_in,
        hidden={
            "action": choice.action,
            **({"id": choice.ids} if choice.ids else filters.query_of(choice.wanted)),
            "until": plan.until.isoformat() if plan else None,
            "total": None if outlook.more else outlook.count,
            "token": str(uuid4()),
        },
        command=filters.command_line(choice.action, choice.wanted, choice.ids),
    )


def begin(visit: Visit) -> Response:
    """Do what the form says, in the background. Because of the form's token a repetition of it does nothing."""
    choice = choice_of(visit.form)
    try:
        values = _values(visit)
    except (ActRefused, HTTPException) as refused:
        return _preview(visit, choice, getattr(refused, "detail", None) or str(refused))
    entry = visit.acts.begin(choice.action, choice.wanted, choice.ids, who=visit.person.name, **values)
    if choice.ids:
        visit.acts.ended(entry, END_SECONDS)
    visit.forget("acts", overview.STATUS)
    return visit.go(f"/acts/{entry}")


def _values(visit: Visit) -> dict[str, Any]:
    """The other fields of the form. Raises `ActRefused` or `HTTPException`."""
    given = {name: value for name in Form.model_fields if (value := visit.form_value(name)) is not None}
    try:
        form = Form.model_validate(given)
    except ValidationError as error:
        wrong = error.errors()[0]
        raise ActRefused(reason=f"{wrong['loc'][0]}: {wrong['msg']}") from None
    if form.total is not None and form.limit is not None:
        form.total = min(form.total, form.limit)
    return {"why": visit.why(), **form.model_dump()}


def show(visit: Visit) -> Response:
    act = _act(visit)
    became = visit.look(f"became {act['seq']}", lambda: Lookup(visit.store).became(act["seq"]))
    return visit.show(
        "act.html",
        act=act,
        under_way=act["wanted"] is not None,
        became=became,
        verdict=_verdict(became),
        done=filters.DONE.get(act["action"]),
        deed=audit.deed(act),
        facts=audit.facts_of(act),
        path=_path_of(act),
    )


def stop(visit: Visit) -> Response:
    """End an act after its current batch."""
    act = _act(visit)
    visit.acts.stop(act["seq"], visit.person.name)
    visit.forget("acts", overview.STATUS)
    return visit.go(f"/acts/{act['seq']}")


def _verdict(became: Became | None) -> str:
    """The colour of what became of the messages: good only if all of them were sent."""
    if became is None:
        return "note"
    sent, dead = became.count("sent"), became.count(DEAD)
    if dead:
        return "bad" if dead >= sent else "warn"
    return "good" if sent == became.kept else "note"


def _act(visit: Visit) -> dict[str, Any]:
    number = _number_of(visit.arguments["entry"])
    act = None if number is None else visit.acts.act(number)
    if act is None:
        raise HTTPException(404, "The audit has no such act.")
    return act


def latest(visit: Visit) -> Response:
    """The acts of people, the last one first."""
    before = visit.query_value("before")
    number = None if before is None else _number_of(before)
    if before is not None and number is None:
        raise HTTPException(400, "A page of the audit begins before the number of an act.")
    acts = visit.look(f"audit before {number}", lambda: Lookup(visit.store).acts(ROWS_SHOWN + 1, number))
    shown = acts[:ROWS_SHOWN]
    return visit.show(
        "audit.html",
        acts=[(act, audit.deed(act), audit.facts_of(act), _path_of(act)) for act in shown],
        next=visit.url("/audit", before=shown[-1]["seq"]) if len(acts) > ROWS_SHOWN else None,
    )


def _number_of(text: str) -> int | None:
    """The number of an act, if the text is one that PostgreSQL can hold."""
    return int(text) if re.fullmatch("[0-9]{1,18}", text) else None


def _path_of(act: dict[str, Any]) -> str | None:
    """The page of the destination or the message that somebody acted on."""
    target = act["target"]
    if not target:
        return None
    try:
        return f"/messages/{UUID(target)}"
    except ValueError:
        return f"/destinations/{target}"
