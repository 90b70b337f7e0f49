"""The pages of the whole outbox: start, with problems first; the workers; and the doctor."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from starlette.responses import Response

from outbox_tasks.errors import OutboxError
from outbox_tasks.operating import overview as counted
from outbox_tasks.operating.heartbeats import Heartbeat
from outbox_tasks.operating.problems import Examination, Severity, examine
from outbox_tasks.telemetry.alerts import known
from outbox_tasks.web import overview
from outbox_tasks.web.visit import FEW_SHOWN, ROWS_SHOWN, Visit


def start(visit: Visit) -> Response:
    """All at one glance. If the database does not answer, only the problems."""
    status = overview.status_if_known(visit)
    problems, is_known = status.examination.problems, bool(status.destinations)
    wanted = (visit.query_value("find") or "").casefold()
    matching = [(name, counts) for name, counts in status.ranked if wanted in name.casefold()]
    shown = matching[:ROWS_SHOWN]
    stale_after = visit.settings.stale_after
    return visit.show(
        "start.html",
        status=200 if is_known or not visit.settings.destinations else 503,
        outbox=status,
        is_known=is_known,
        acts=overview.under_way(act._asdict() for act in status.acts),
        problems=problems[:FEW_SHOWN],
        problems_left_out=len(problems) - FEW_SHOWN,
        stale={problem.which for problem in status.examination.everything if problem.code == "stale"},
        number_wrong=sum(problem.severity is not Severity.NOTE for problem in problems),
        place=lambda problem: overview.place(visit, problem),
        destinations=shown,
        destinations_left_out=len(matching) - ROWS_SHOWN,
        cut=counted.cut(status.destinations),
        supervised=any(counts.states["handed over"] or counts.states["running"] for _, counts in status.ranked),
        charts=overview.small_charts(visit, (name for name, _ in shown)) if is_known else {},
        hours=overview.HOURS,
        feeds=[(feed, feed.state(stale_after)) for feed in status.feeds[:ROWS_SHOWN]],
        workers=in_order([*status.heartbeats.workers, *status.heartbeats.supervising]),
        workers_shown=FEW_SHOWN,
    )


def workers(visit: Visit) -> Response:
    """The workers of the relay, the application's that run supervised tasks, and what they do."""
    status = overview.status_of(visit)
    relay, supervising = in_order(status.heartbeats.workers), in_order(status.heartbeats.supervising)
    return visit.show(
        "workers.html",
        outbox=status,
        relay=relay[:ROWS_SHOWN],
        supervising=supervising[:ROWS_SHOWN],
        workers_left_out=len(relay[ROWS_SHOWN:]) + len(supervising[ROWS_SHOWN:]),
        sends=visit.look("sends", lambda: visit.store.ask("look/sends.sql", destination=None, most=ROWS_SHOWN)),
        running=[(name, counts) for name, counts in status.destinations.items() if counts.states["running"]],
    )


def doctor(visit: Visit) -> Response:
    """The problems. The doctor looks when somebody loads the page, which may take seconds; it does not refresh."""

    def look() -> tuple[Examination, datetime]:
        return examine(visit.settings, visit.shared.connections.installed, deep=True), datetime.now(UTC)

    examination, looked_at = visit.look("doctor", look, seconds=5.0)
    try:
        alerts = visit.look("alerts", lambda: known(visit.store, ROWS_SHOWN))
    except OutboxError:  # the problems say that the database does not answer
        alerts = None
    return visit.show("doctor.html", again=None, examination=examination, looked_at=looked_at, alerts=alerts)


def in_order(heartbeats: Iterable[Heartbeat]) -> list[Heartbeat]:
    """Workers in trouble first."""
    return sorted(heartbeats, key=lambda worker: (worker.alive, not worker.shares_name, worker.name))
