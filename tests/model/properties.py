"""The promises: what must hold in every state, and at every step."""

from __future__ import annotations

from tests.model.base import Step, Variant
from tests.model.state import SETTLED, Giving, Hand, Row, Rows

LOST = "nothing is lost"
GHOST = "what is not committed is never sent"
OVERTAKEN = "no message is first delivered before the earlier one of its key"
EXPLAINED = "a repeated delivery has its cause on the row"
VISIBLE = "a dead letter says why"
COUNTED = "no message has more attempts than its limit"
ONE_HOLDER = "only one at a time has begun a message and not settled it"
EXPIRED = "who sends loses its lease only when that has run out"
FENCED = "who does not hold a row changes nothing on it"
ENDS = "every message can still come to an end"


def broken_rows(rows: Rows, variant: Variant) -> str | None:
    """The promise that these rows break."""
    for row in rows:
        if row.arrived and row.place in ("unwritten", "open", "rolled back"):
            return GHOST
        if row.place == "sent" and not row.arrived:
            return LOST
        if row.arrived > 1 and row.code not in ("unsettled", "failed"):
            return EXPLAINED
        if row.place == "dead" and not row.code:
            return VISIBLE
        if row.attempts > variant.max_attempts:
            return COUNTED
    if variant.keyed and len(rows) > 1 and rows[1].arrived and not _has_gone_first(rows[0]):
        return OVERTAKEN
    return None


def _has_gone_first(row: Row) -> bool:
    return bool(row.arrived or row.passed or row.place in ("discarded", "rolled back"))


def broken_hands(hands: tuple[Hand, ...]) -> str | None:
    """The promise that two workers break together."""
    one, other = (sending(hand) for hand in hands)
    return ONE_HOLDER if one & other else None


def sending(hand: Hand) -> frozenset[int]:
    """The messages that a worker has begun and not settled, under a lease that nobody has replaced."""
    return frozenset(held.message for held in hand if held.current and held.stage not in SETTLED)


def taken_away(before: Rows, step: Step) -> frozenset[int]:
    """The messages whose lease this step ends, other than by granting a new one after it has run out. What is not
    committed nobody has."""
    return frozenset(
        n
        for n, (row, after) in enumerate(zip(before, step.rows, strict=True))
        if row.leased and row.place != "open"
        if (n in step.granted and not row.due) or (n not in step.granted and not after.leased)
    )


def is_unfenced(before: Rows, step: Step, actor: Hand | Giving) -> bool:
    """Whether a worker, or who hands a task on, changes a row that it does not hold."""
    owned = actor.task if isinstance(actor, Giving) else actor
    held = {
        one.message
        for one in owned
        if one.current and before[one.message].leased and one.attempt == before[one.message].attempts
    }
    changed = (n for n, row in enumerate(before) if _life(row) != _life(step.rows[n]))
    return any(n not in held for n in changed)


def is_begun_by_stranger(step: Step) -> bool:
    """Whether a worker begins a message whose lease has been granted to another."""
    return any(held.stage not in SETTLED and not held.current for held in step.hand)


def _life(row: Row) -> tuple[object, ...]:
    return row[: Row._fields.index("code")]


ENDED = ("sent", "discarded", "rolled back", "dead")


def has_ended(rows: Rows, variant: Variant) -> bool:
    """Whether nothing is left to be done but by people."""
    return all(row.place in ENDED or _is_held_up(rows, n, variant) for n, row in enumerate(rows))


def _is_held_up(rows: Rows, message: int, variant: Variant) -> bool:
    """Behind a dead message of its key, which `outbox-tasks keys` lists."""
    blocked = variant.keyed and not variant.skip
    return blocked and rows[message].place == "pending" and any(row.place == "dead" for row in rows[:message])
