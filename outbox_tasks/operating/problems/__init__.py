"""What is wrong with a relay and all that it needs: one list, for `status`, `health`, the doctor, alerts, metrics and
the page.

A check is a function that yields problems: see `checks`. Most checks read the relay's database and ask its broker, so
they run whenever somebody looks. The deep ones ask more, and take seconds: the doctor runs them. Nothing is changed or
sent. What does not answer in time is a problem. `order` says which problem comes from which.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection
from contextlib import closing
from dataclasses import dataclass, replace

from celery import Celery

from outbox_tasks.errors import OutboxError
from outbox_tasks.operating.problems import workers
from outbox_tasks.operating.problems.checks import CHECK_FAILED, CHECKS, CODES, SETTINGS
from outbox_tasks.operating.problems.order import folded
from outbox_tasks.operating.problems.problem import Problem, Severity, error, warning
from outbox_tasks.operating.problems.site import Check, Connections, Reached, Site
from outbox_tasks.settings import Settings
from outbox_tasks.text import many

__all__ = [
    "CODES", "Connections", "Examination", "Problem", "Severity", "Site", "examine",
    "examine_worker", "look", "refused",
]  # fmt: skip

log = logging.getLogger(__name__)

OF_THE_DATABASE = ("database_away", "database_slow", "schema_missing", "schema_mismatch")
"""Without these a worker can't write heartbeats."""


@dataclass(frozen=True)
class Examination:
    """What was found."""

    problems: list[Problem]
    """The root causes, the worst first, each with what follows from it."""
    in_order: dict[str, list[str]]
    """By subject: what was looked at, and is in order."""
    skipped: list[str]
    """The subjects of checks that did not run, because what they need did not answer."""

    @property
    def everything(self) -> list[Problem]:
        """All problems, also those that follow from others."""
        return [problem for root in self.problems for problem in (root, *root.follows)]

    @property
    def summary(self) -> str:
        """How many problems of each severity there are, for people."""
        counts = Counter(problem.severity for problem in self.everything)
        parts = (many(counts[severity], severity.value) for severity in Severity if counts[severity])
        return ", ".join(parts) or "Everything that was looked at is in order."

    @property
    def quiet(self) -> bool:
        """Whether there is neither error nor warning."""
        return all(problem.severity is Severity.NOTE for problem in self.everything)

    @property
    def healthy(self) -> bool:
        """Whether there is no error."""
        return all(problem.severity is not Severity.ERROR for problem in self.problems)


def examine(
    settings: Settings, app: Celery | None = None, deep: bool = False, only: Collection[str] = ()
) -> Examination:
    """Look at a relay, over connections of its own. `deep`: run all checks, not only those that take milliseconds.
    `only`: look for problems of these codes alone. `app`: the app that the relay is installed in, if any."""
    with closing(Connections(settings, app)) as connections:
        return look(Site(connections), deep=deep, only=only)


def look(site: Site, *, deep: bool = False, only: Collection[str] = ()) -> Examination:
    """The same over connections that are open already. The site keeps what was read: `status` shows more of it."""
    site.deep = deep or bool(only)
    wanted = {
        check: check.concerns(site.settings) and (not check.codes.isdisjoint(only) if only else deep or not check.deep)
        for check in CHECKS
    }
    # The last ones first: a check that finds out what they need may need something too.
    needed: set[Reached] = set()
    for check in reversed(CHECKS):
        if wanted[check] or not needed.isdisjoint(check.gives):
            needed.update(check.needs, check.uses)
    if not only:
        _ = site.asked_broker
    problems: list[Problem] = []
    in_order: dict[str, list[str]] = {}
    skipped: dict[str, None] = {}
    for check in CHECKS:
        if not wanted[check] and needed.isdisjoint(check.gives):
            continue
        if not site.reached.issuperset(check.needs) or (check.needs and site.timed_out):
            skipped[check.subject] = None
            continue
        yielded = _run(site, check)
        # If nothing answers, all problems of this check are shown: they say why the wanted ones are not known.
        answered = not check.gives or check.gives[0] in site.reached
        problems += [each for each in yielded if not only or not answered or each.code in {*only, CHECK_FAILED}]
        if not yielded and site.reached.issuperset(check.uses):
            in_order.setdefault(check.subject, []).append(check.in_order)
    return Examination(folded(problems), in_order if not only else {}, list(skipped))


def examine_worker(settings: Settings, name: str) -> Examination:
    """Whether one worker, by its node's name, is alive, as far as the database knows."""
    with closing(Connections(settings)) as connections:
        site = Site(connections)
        examination = look(site, only=OF_THE_DATABASE)
        lost = list(workers.lost(site, name)) if "tables" in site.reached else []
        return replace(examination, problems=[*examination.problems, *lost])


def refused(reason: OutboxError) -> Examination:
    """The examination, if the settings can't be used at all."""
    problem = error(
        SETTINGS,
        str(reason),
        "Nothing starts with these settings, so nothing else was looked at.",
        "Correct it in outbox.toml, or in the environment: docs/settings.md.",
    )
    return Examination([problem], {}, [])


def _run(site: Site, check: Check) -> list[Problem]:
    try:
        return list(check.run(site))
    except Exception as failed:
        log.debug("a check failed", exc_info=True)
        reason = f"{type(failed).__name__}: {failed}"
    which = f"{check.run.__module__.rpartition('.')[2]}.{check.run.__name__}"
    fact = f"Whether {check.in_order} ({check.subject.lower()}) could not be found out: {reason}"
    cause = f"So nobody knows of problems such as {', '.join(sorted(check.codes))}."
    remedy = "If the reason does not say what to do, try again. If it fails again, please report it."
    return [warning(CHECK_FAILED, fact, cause, remedy, which=which)]
