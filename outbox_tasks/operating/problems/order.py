"""Which problem comes from which: root causes first, and what follows from a root cause folded under it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from outbox_tasks.operating.problems.problem import Problem, Severity

UNSENT = {"stale", "silent", "queue_stuck", "queue_slow"}
"""Messages wait: each trouble on the way of a message shows as one of these in the end."""

STANDSTILL = UNSENT | {
    "no_workers", "no_beat", "no_claims", "no_maintenance", "no_heartbeat", "claims_late", "feed_late",
    "tasks_unsupervised", "tasks_wait",
}  # fmt: skip
"""Without database or broker nothing runs, and nothing can say that it does."""

FOLLOWS: dict[str, set[str]] = {
    "database_read_only": STANDSTILL,
    "database_refuses_writes": STANDSTILL,
    "database_slow": STANDSTILL,
    "rights_missing": {"database_refuses_writes"} | STANDSTILL,
    "broker_away": STANDSTILL | {"breaker_open"},
    "crossed_wires": STANDSTILL,
    "memory_low": STANDSTILL,
    "no_heartbeat": {"no_workers"},
    "no_workers": UNSENT | {"no_beat", "no_claims", "no_maintenance", "feed_late"},
    "no_claims": UNSENT,
    "no_beat": UNSENT | {"no_claims", "no_maintenance", "feed_late"},
    "claims_late": UNSENT | {"no_claims"},
    "xmin_held": {"claims_late", "dead_rows"},
    "autovacuum_off": {"dead_rows"},
    "index_missing": {"claims_late", "database_slow"},
    "sequence_behind": UNSENT,
    "task_unknown": {"tasks_wait"},
    "tasks_unsupervised": {"tasks_wait"},
    "silent": {"stale"},
    "queue_stuck": {"stale", "silent"},
    "writer_open": {"stale"},
    "prepared_transaction": {"stale"},
    "lock_of_a_stranger": {"stale", "claims_late", "no_maintenance"},
}
"""By the code of a root cause: the codes of what follows from it."""

FOLLOWS_THERE: dict[str, set[str]] = {
    "destination_away": {"breaker_open", "destination_failing", "destination_refuses", "stale"},
    "publisher_missing": {"stale", "destination_away"},
    "password_unavailable": {"breaker_open", "destination_failing", "destination_refuses", "stale"},
    "paused": {"stale", "destination_failing", "destination_refuses", "destination_waits", "breaker_open"},
    "breaker_open": {"stale", "destination_failing", "destination_refuses", "destination_waits"},
    "destination_refuses": {"stale", "destination_waits", "dead_letters"},
    "destination_failing": {"stale"},
    "destination_waits": {"stale"},
    "limited": {"stale"},
    "destination_unknown": {"stale"},
    "dead_letters": {"keys_blocked"},
    "feed_fails": {"feed_late"},
}
"""The same, where both are about one destination or feed."""

ON_PURPOSE = {"paused", "limited"}
"""What people have wanted is not worse for what follows from it."""

RANK = {severity: place for place, severity in enumerate(Severity)}


def explains(root: Problem, other: Problem) -> bool:
    if other.code in FOLLOWS.get(root.code, ()):
        return True
    return root.which == other.which and other.code in FOLLOWS_THERE.get(root.code, ())


def folded(problems: Iterable[Problem]) -> list[Problem]:
    """The root causes, each with all that follows from it, and as bad as the worst of that. The worst are first;
    equally bad ones stay in their order, in which what is nearer to the ground comes first."""
    among = list(problems)
    under: dict[int, list[Problem]] = {id(problem): [] for problem in among}
    roots = []
    for problem in among:
        root = _root(problem, among)
        if root is problem:
            roots.append(problem)
        else:
            under[id(root)].append(problem)
    return sorted((_with(under[id(root)], root) for root in roots), key=lambda root: RANK[root.severity])


def _with(follows: list[Problem], root: Problem) -> Problem:
    judged = [root] if root.code in ON_PURPOSE else [root, *follows]
    worst = min((problem.severity for problem in judged), key=RANK.__getitem__)
    return replace(root, severity=worst, follows=tuple(follows))


def _root(problem: Problem, among: list[Problem]) -> Problem:
    """Where a problem comes from in the end; itself, if nothing here explains it. No code explains itself on any way: a
    test looks at that."""
    while (cause := next((other for other in among if explains(other, problem)), None)) is not None:
        problem = cause
    return problem
