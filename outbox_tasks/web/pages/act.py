"""Acts on messages: a preview, a form with a reason, and one act, as it goes on and when it has ended.

There are three acts. Redrive sends dead letters again. Try sends at once what waits for another attempt. Discard gives
messages up; for a message that still waits, that is what `outbox.cancel` does, with an entry in the audit.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any
from uuid import UUID, uuid4

from starlette.exceptions import HTTPException
from starlette.responses import Response

from outbox_tasks.errors import ActRefused, InvalidFilter
from outbox_tasks.operating import audit
from outbox_tasks.operating.messages import filters
from outbox_tasks.operating.messages.find import DEAD, Became, Filter, Lookup
from outbox_tasks.operating.messages.preview import Choice, preview
from outbox_tasks.web import overview
from outbox_tasks.web.visit import LONGEST_REASON, Visit

MOST_IDS = 100
"""Messages that can be named, as many as a list shows."""

NAMED = 20
"""Messages that an act has not changed, of which its page shows some."""

KINDS = 50
"""Kinds of messages that the preview shows."""

PATIENCE = 0.2
"""Seconds for which the preview counts: a page should be there at once."""

SOON = 1.0
"""Seconds for which a form waits for the end of an act on named messages."""

ABOUT = {
    "redrive": "A redriven message is sent again at once, with all its attempts.",
    "try": "A message that waits for another attempt is due at once. Its attempts and the order of its key stay.",
    "discard": "A discarded message goes to the archive and is not sent. What waits behind it in its key goes on.",
}
"""What each act does."""

RATE, LIMIT = ("rate", 0.01, 100_000.0), ("limit", 1, 1_000_000_000)
"""Fields of the form, and their bounds. The rate is messages a second."""


def choice_of(fields: Mapping[str, list[str]]) -> Choice:
    """What an address or a form says. Raises `ActRefused` or `InvalidFilter`."""
    action: Any = (fields.get("action") or [""])[0]
    if action not in filters.CHANGEABLE:
        raise ActRefused(reason=f"the acts are {', '.join(filters.CHANGEABLE)}")
    wanted, ids = filters.asked(fields), filters.ids_of(fields.get("id", []))
    if "chosen" in fields and not ids:
        raise ActRefused(reason="no message was chosen; go back to the list and choose some")
    if len(ids) > MOST_IDS:
        raise ActRefused(reason=f"at most {MOST_IDS} messages can be named; choose more of them by a filter")
    if ids and wanted.facts:
        raise ActRefused(reason="name the messages, or choose them by a filter, not both")
    return Choice(action, filters.for_act(action, wanted, named=bool(ids)), ids)


def fields_of(choice: Choice) -> dict[str, Any]:
    """What a form sends, so that `choice_of` reads the same."""
    chosen = {"id": [str(id) for id in choice.ids]} if choice.ids else filters.query_of(choice.wanted)
    return {"action": choice.action, **chosen}


def new(visit: Visit) -> Response:
    """The preview: which messages, how many, of which kinds."""
    return _preview(visit, choice_of(visit.query))


def _preview(visit: Visit, choice: Choice, refused: str | None = None) -> Response:
    found = preview(visit.store, choice, seconds=PATIENCE)
    plan = found.plan
    said = {name: visit.said(name) or visit.ask(name) for name in ("why", "rate", "limit")}
    how = {} if refused else {"rate": _number(said["rate"], *RATE), "limit": _number(said["limit"], *LIMIT)}
    return visit.show(
        "act_new.html",
        status=200 if refused is None else 400,
        again=None,
        refused=refused,
        choice=choice,
        about=ABOUT[choice.action],
        chosen=which(choice.wanted),
        done=filters.DONE[choice.action],
        found=found,
        kinds=plan.kinds[:KINDS] if plan else [],
        said=said,
        hidden={
            **fields_of(choice),
            "until": visit.said("until") or (plan.until.isoformat() if plan else None),
            "total": None if found.more else found.count,
            "token": visit.said("token") or str(uuid4()),
        },
        command=filters.command_line(choice.action, choice.wanted, choice.ids, **how, why=said["why"]),
        longest_why=LONGEST_REASON,
    )


def begin(visit: Visit) -> Response:
    """Do what the form says, in the background; the form's token makes that a repetition does nothing."""
    choice = choice_of(visit.form)
    try:
        given = _given(visit)
    except (ActRefused, HTTPException) as refused:
        return _preview(visit, choice, getattr(refused, "detail", None) or str(refused))
    rest: dict[str, Any] = {}
    ids = choice.ids
    if visit.said("first") and choice.action == "redrive":
        given |= {"limit": 1, "total": 1}
        rest, ids = {**fields_of(choice), "id": [str(id) for id in ids[1:]] or None}, ids[:1]
    entry = visit.acts.begin(choice.action, choice.wanted, ids, who=visit.person.name, **given)
    if ids or rest:
        visit.acts.ended(entry, SOON)
    _forget(visit)
    return visit.go(f"/acts/{entry}", **rest)


def _given(visit: Visit) -> dict[str, Any]:
    """The other fields of the form. Raises `ActRefused` or `HTTPException`."""
    rate, limit = _number(visit.said("rate"), *RATE), _number(visit.said("limit"), *LIMIT)
    try:
        token, said = UUID(visit.said("token") or ""), visit.said("until")
        until = None if said is None else datetime.fromisoformat(said)
        if until is not None and until.tzinfo is None:
            raise ValueError("without a zone")
    except ValueError:
        raise ActRefused(reason="the form is not whole; begin with the preview") from None
    counted = (visit.said("total") or "")[:9]
    total = min(int(counted), limit or LIMIT[2]) if counted.isascii() and counted.isdigit() else None
    return {"why": visit.why(), "rate": rate, "limit": limit, "total": total, "until": until, "token": token}


def _number(said: str | None, name: str, least: Any, most: Any) -> Any:
    """A number of the form, of the type of its bounds. Raises `ActRefused`."""
    if said is None:
        return None
    whole = "whole " if type(least) is int else ""
    try:
        number = float(said)
    except ValueError:
        raise ActRefused(reason=f"the {name} is a number") from None
    if not least <= number <= most or (whole and number != int(number)):
        raise ActRefused(reason=f"the {name} is a {whole}number from {least:g} to {most:,.0f}")
    return type(least)(number)


def show(visit: Visit) -> Response:
    """One act: how far it is, or what was done."""
    act = _act(visit)
    # Whoever may write into the audit may have put anything into the facts.
    numbers = ("seconds", "missed", "named", "limit", "rate")
    facts = {k: v for k, v in act["facts"].items() if k not in numbers or type(v) in (int, float)}
    act["facts"] = facts
    going = act["wanted"] is not None
    if going and not act["held"] and not visit.read_only:
        visit.acts.wake()
    ended = {name: facts.get(name) for name in ("seconds", "stopped", "error", "missed")}
    wanted = _wanted(facts)
    known = act["action"] in filters.CHANGEABLE
    named = 1 if act["target"] else facts.get("named")
    took = act["age"] if going else ended["seconds"]
    speed = act["count"] / took if took and act["count"] else None
    return visit.show(
        "act.html",
        act=act,
        going=going,
        ended=ended,
        became=(became := visit.look(f"became {act['seq']}", lambda: Lookup(visit.store).became(act["seq"]))),
        verdict=_verdict(became),
        rest=_rest(visit),
        not_changed=_ids(facts.get("not_changed"))[:NAMED],
        named=named,
        known=known,
        chosen=which(wanted),
        limit=facts.get("limit"),
        rate=facts.get("rate"),
        group=wanted.group,
        speed=speed,
        left=(act["total"] - act["count"]) / speed if going and speed and act["total"] else None,
        done=filters.DONE.get(act["action"]),
        deed=audit.deed(act),
        facts=audit.facts_of({"facts": {k: v for k, v in facts.items() if k not in ended}}),
        command=_command(act, wanted) if known else None,
    )


def _ids(texts: Any) -> list[UUID]:
    """Those that these texts are, if all are ids."""
    try:
        return filters.ids_of(map(str, texts or ()))
    except (InvalidFilter, TypeError):
        return []


def _verdict(became: Became | None) -> str:
    """The colour of what became of the messages: good only if all of them were sent."""
    if became is None:
        return "note"
    sent, dead = became.count("sent"), became.count(DEAD)
    if dead:
        return "bad" if dead >= sent else "warn"
    return "good" if sent == became.kept else "note"


def _rest(visit: Visit) -> str | None:
    """After one message was tried: the preview of the act on the others, which the address names."""
    try:
        choice = choice_of(visit.query)
    except (ActRefused, InvalidFilter):
        return None
    return visit.url("/acts/new", **fields_of(choice))


def stop(visit: Visit) -> Response:
    """End an act after its current batch."""
    act = _act(visit)
    visit.acts.stop(act["seq"], visit.person.name)
    _forget(visit)
    return visit.go(f"/acts/{act['seq']}")


def _forget(visit: Visit) -> None:
    """Look anew at the acts that are under way."""
    for look in ("acts", overview.STATUS):
        visit.looks.forget(look)


def which(wanted: Filter) -> dict[str, str]:
    """A filter in words."""
    query = filters.query_of(wanted)
    return {
        name.replace("-", " "): ", ".join(value) if isinstance(value, list) else value for name, value in query.items()
    }


def _act(visit: Visit) -> dict[str, Any]:
    text = visit.arguments["entry"]
    act = visit.acts.act(int(text)) if text.isascii() and text.isdigit() and len(text) <= 18 else None
    if act is None:
        raise HTTPException(404, "The audit has no such act.")
    return act


def _wanted(facts: Mapping[str, Any]) -> Filter:
    """The filter of an act. Whoever may write into the audit may have put anything there."""
    try:
        wanted = Filter.recorded({name: facts[name] for name in Filter.__slots__ if name in facts})
        return filters.asked({name: [value] if isinstance(value, str) else value
                              for name, value in filters.query_of(wanted).items()})  # fmt: skip
    except (InvalidFilter, TypeError, ValueError, ArithmeticError, AttributeError):
        return Filter()


def _command(act: Mapping[str, Any], wanted: Filter) -> str | None:
    """The command that does the same; None: the audit does not say which messages were named."""
    ids = _ids([act["target"]]) if act["target"] else []
    if not ids and (act["target"] or "named" in act["facts"]):
        return None
    how = {name: act["facts"].get(name) for name in ("rate", "limit")}
    return filters.command_line(act["action"], wanted, ids, **how, why=act["why"])
