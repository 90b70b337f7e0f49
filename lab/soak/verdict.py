"""The verdict: what was written, compared with what arrived. A pure function of the evidence."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from statistics import median
from typing import NamedTuple

from lab.soak.ledger import Written

SENT, DEAD, DISCARDED = "sent", "dead", "discarded"
EXAMPLES, SUSPECTS = 5, 50
"""Ids that a problem names, and of which the lives are written down."""


class Row(NamedTuple):
    """What the relay knows of a message."""

    destination: str
    key: str | None
    seq: int
    state: str
    code: str | None
    """The last error that is recorded on it."""


class Arrival(NamedTuple):
    """A message at its destination."""

    id: str
    at: float


class Happened(NamedTuple):
    """A fault that has happened, in Unix time."""

    kind: str
    began: float
    ended: float


@dataclass(frozen=True)
class Evidence:
    """All that a run leaves behind."""

    written: Sequence[Written]
    acknowledged: Mapping[str, float]
    """When the application was told that they are committed."""
    withdrawn: frozenset[str]
    rows: Mapping[str, Row]
    arrivals: Sequence[Arrival]
    """In the order of each destination."""
    happened: Sequence[Happened] = ()
    transitions: Mapping[str, int] = field(default_factory=dict)
    """How often the rows made each transition of the model."""
    impossible: Sequence[str] = ()
    """Changes of rows that are no transition, each with the lives of some of its messages."""
    remarks: Sequence[str] = ()
    """What else is wrong: found while it ran."""


class Recovery(NamedTuple):
    """After the faults of a kind: seconds from the end of each."""

    faults: int
    next_median: float
    """Until the next delivery."""
    next_worst: float
    drained_median: float
    """Until all has arrived that was due when the fault ended."""
    drained_worst: float


@dataclass
class Verdict:
    """What became of all messages."""

    committed: int
    rolled_back: int
    delivered: int
    dead: int
    """Those that no destination can ever take."""
    lost: list[str]
    ghosts: list[str]
    stuck: list[str]
    died: list[str]
    """Dead letters that should have been delivered."""
    repeated: int
    causes: dict[str, int]
    """Of the repetitions: the error on the row."""
    unexplained: list[str]
    overtakes: list[str]
    transitions: dict[str, int]
    impossible: list[str]
    """The moves that the model does not know."""
    faults: int
    recoveries: dict[str, Recovery] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)

    @property
    def problems(self) -> list[str]:
        """Broken promises, in plain words."""
        findings = [
            (self.lost, "Committed, yet neither delivered nor a dead letter"),
            (self.ghosts, "Delivered, though nobody had committed them"),
            (self.stuck, "Still on their way, and nothing moves any more"),
            (self.died, "Dead letters that should have been delivered"),
            (self.unexplained, "Delivered more than once, without a cause on the row"),
            (self.overtakes, "Delivered before an earlier message of their key"),
        ]
        return [
            *(f"{what}: {len(ids):,} ({_examples(ids)})" for ids, what in findings if ids),
            *(f"A message moved as none may: {move}" for move in self.impossible),
            *self.remarks,
        ]

    @property
    def suspects(self) -> list[str]:
        """Messages whose lives are worth a look."""
        wrong = (self.lost, self.ghosts, self.stuck, self.died, self.unexplained, self.overtakes)
        return [id for ids in wrong for id in ids[:SUSPECTS]]


def _examples(ids: Sequence[str]) -> str:
    more = ", …" if len(ids) > EXAMPLES else ""
    return ", ".join(ids[:EXAMPLES]) + more


def judge(evidence: Evidence) -> Verdict:
    """Compare."""
    written = {message.id: message for message in evidence.written}
    counts = Counter(arrival.id for arrival in evidence.arrivals)
    states = {id: row.state for id, row in evidence.rows.items()}
    undelivered = [message for message in evidence.written if message.id not in counts]
    # A commit that was answered, and whose rows are gone, is a loss too.
    forgotten = [id for id in evidence.acknowledged if id not in written]
    ended = (SENT, DEAD, DISCARDED)
    on_their_way = [message.id for message in evidence.written if states.get(message.id, SENT) not in ended]
    lost = {message.id for message in undelivered if states.get(message.id, SENT) in (SENT, DISCARDED)}
    repeated = {id: count - 1 for id, count in counts.items() if count > 1}
    code = {id: row.code for id, row in evidence.rows.items()}
    causes: Counter[str] = Counter()
    for id, more in repeated.items():
        causes[code.get(id) or "none"] += more
    dead = [message for message in evidence.written if states.get(message.id) == DEAD]
    return Verdict(
        committed=len(written),
        rolled_back=len(evidence.withdrawn - written.keys()),
        delivered=len(written.keys() & counts.keys()),
        dead=sum(message.hopeless for message in dead),
        lost=[*forgotten, *sorted(lost)],
        ghosts=[id for id in counts if id not in written],
        stuck=on_their_way,
        died=[message.id for message in dead if not message.hopeless],
        repeated=sum(repeated.values()),
        causes=dict(causes.most_common()),
        unexplained=[id for id in repeated if not code.get(id)],
        overtakes=overtakes(evidence.arrivals, evidence.rows),
        transitions=dict(evidence.transitions),
        impossible=[change.partition("\n")[0] for change in evidence.impossible],
        faults=len(evidence.happened),
        recoveries=recoveries(evidence),
        remarks=list(evidence.remarks),
    )


def overtakes(arrivals: Iterable[Arrival], rows: Mapping[str, Row]) -> list[str]:
    """The messages that arrived for the first time behind a later one of their key."""
    latest: dict[tuple[str, str], int] = defaultdict(int)
    late = []
    for id in dict.fromkeys(arrival.id for arrival in arrivals):
        row = rows.get(id)
        if row is None or row.key is None:
            continue
        key = (row.destination, row.key)
        if row.seq < latest[key]:
            late.append(id)
        latest[key] = max(latest[key], row.seq)
    return late


def recoveries(evidence: Evidence) -> dict[str, Recovery]:
    """How soon it went on after each kind of fault. Other faults may have begun meanwhile: they count too."""
    times = sorted(arrival.at for arrival in evidence.arrivals)
    first: dict[str, float] = {}
    for arrival in evidence.arrivals:
        first.setdefault(arrival.id, arrival.at)
    due = sorted(
        (evidence.acknowledged.get(message.id, message.at) + message.delay, first[message.id])
        for message in evidence.written
        if message.id in first
    )
    moments = [moment for moment, _ in due]
    arrived = list(accumulate((at for _, at in due), max))
    waits: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for fault in evidence.happened:
        if (following := bisect_right(times, fault.ended)) == len(times):
            continue  # nothing was left to be delivered
        before = bisect_right(moments, fault.ended)
        drained = max(0.0, arrived[before - 1] - fault.ended) if before else 0.0
        waits[fault.kind].append((times[following] - fault.ended, drained))
    return {kind: _recovery(each) for kind, each in sorted(waits.items())}


def _recovery(each: Sequence[tuple[float, float]]) -> Recovery:
    following, drained = zip(*each, strict=True)
    return Recovery(len(each), median(following), max(following), median(drained), max(drained))
