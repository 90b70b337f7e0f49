"""All that may free a key, or put a message back: settles, leases that run out, waits that are over, people."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tests.model.storage.key_state import Change, Row, State

if TYPE_CHECKING:
    from tests.model.storage.keys import Keys


def changes(keys: Keys, state: State) -> Iterator[Change]:
    """Every statement that may begin now."""
    for key in sorted(state.notes):
        yield keys.begun(state, Change(f"the note of {key} is read", (), frozenset(), (key,), read=frozenset({key})))
    busy = {n for change in state.changes for n in change.locked}
    if state.claim is not None:
        busy |= keys.waits_for(state.claim)
    for first in sorted({row.lease for row in state.rows if row.place == "leased"}):
        bundle = [n for n, row in enumerate(state.rows) if row.place == "leased" and row.lease == first]
        if not busy & {*bundle}:
            yield from _settles(keys, state, bundle)
    for n, row in enumerate(state.rows):
        if n in busy:
            continue
        told = f"m{n + 1}"
        if row.place == "waiting":
            yield _change(keys, state, f"the wait of {told} is over", {n: row._replace(place="held", free=True)}, False)
        if not keys.people:
            continue
        if row.place == "dead":
            again = row._replace(place="held", free=True)
            yield _change(keys, state, f"a person redrives {told}", {n: again}, False)
            yield _change(keys, state, f"a person discards {told}", {n: row._replace(place="over")})
        elif row.place in ("ready", "later", "held", "waiting"):
            gone = Row(row.key, "over", passed=row.passed)
            yield _change(keys, state, f"a person cancels {told}", {n: gone})


def _settles(keys: Keys, state: State, bundle: list[int]) -> Iterator[Change]:
    rows = {n: state.rows[n]._replace(lease=-1) for n in bundle}
    sent = {n: row._replace(place="over") for n, row in rows.items()}
    told_all = f"the bundle of {names(bundle)}"
    yield _change(keys, state, f"{told_all} is settled", sent)
    back = {n: row._replace(place="held", free=keys.marks_what_runs_out()) for n, row in rows.items()}
    yield _change(keys, state, f"the lease of {told_all} runs out", back, False)
    yield _change(keys, state, f"the lease of {told_all} is ended early", {n: state.rows[n] for n in bundle}, False)
    yield from _parts(keys, state, bundle, sent)
    for place, n in enumerate(bundle):
        behind = {other: rows[other]._replace(place="held", free=keys.marks_behind()) for other in bundle[place + 1 :]}
        before = {other: sent[other] for other in bundle[:place]}
        told = f"m{n + 1} of {told_all}"
        retried = rows[n]._replace(place="leased", lease=n)
        yield _change(keys, state, f"{told} is retried soon", {**before, n: retried, **behind})
        yield _change(keys, state, f"{told} waits", {**before, n: rows[n]._replace(place="waiting"), **behind})
        dead = rows[n]._replace(place="dead", passed=keys.skip)
        yield _change(keys, state, f"{told} is dead", {**before, n: dead, **behind})


def _parts(keys: Keys, state: State, bundle: list[int], sent: dict[int, Row]) -> Iterator[Change]:
    """A settle names the first ones only, as when a worker was quicker than it; or a worker gives the last ones back,
    as when it halves a bundle. The others stay leased."""
    for cut in range(1, len(bundle)):
        first, last = bundle[:cut], bundle[cut:]
        stay = {n: keys.unnamed(state.rows[n]._replace(lease=last[0])) for n in last}
        yield _change(keys, state, f"of a bundle only {names(first)} is settled", {n: sent[n] for n in first} | stay)
        back = {n: state.rows[n]._replace(place="held", free=True, lease=-1) for n in last}
        here = {n: state.rows[n] for n in first}
        yield _change(keys, state, f"of a bundle {names(last)} is given back", here | back, False)


def names(numbers: list[int]) -> str:
    return " and ".join(f"m{n + 1}" for n in numbers)


def _change(keys: Keys, state: State, what: str, after: dict[int, Row], frees: bool = True) -> Change:
    mine = tuple(sorted({row.key for row in after.values()})) if frees and keys.marks_next(what) else ()
    return keys.begun(state, Change(what, tuple(sorted(after.items())), frozenset(after), mine))
