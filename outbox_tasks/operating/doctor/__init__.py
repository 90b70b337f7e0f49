"""The doctor: checks a relay and everything that it needs, and says what is wrong, why that matters, and what to do.

It changes nothing, sends nothing, and takes some seconds at most. If something does not answer in time, that is a
finding."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field

from celery import Celery

from outbox_tasks.errors import OutboxError
from outbox_tasks.operating.doctor.checks import AFTERWARDS, AT_ONCE, CHECK_FAILED, CHECKS, CODES, SETTINGS, SUBJECTS
from outbox_tasks.operating.doctor.finding import Finding, Fine, Severity, error, warning
from outbox_tasks.operating.doctor.site import Check, Reached, Site
from outbox_tasks.settings import Settings
from outbox_tasks.text import many

__all__ = ["CODES", "Examination", "Finding", "Part", "Severity", "examine", "refused"]

log = logging.getLogger(__name__)


@dataclass
class Part:
    """The findings of one subject."""

    subject: str
    findings: list[Finding] = field(default_factory=list)
    in_order: list[str] = field(default_factory=list)
    skipped: bool = False
    """Some checks did not run, because what they need did not answer."""


@dataclass
class Examination:
    """All findings."""

    parts: list[Part]

    @property
    def findings(self) -> list[Finding]:
        return [finding for part in self.parts for finding in part.findings]

    @property
    def summary(self) -> str:
        """How many findings of each severity there are, for people."""
        counts = Counter(finding.severity for finding in self.findings)
        found = (many(counts[severity], severity.value) for severity in Severity if counts[severity])
        return ", ".join(found) or "Everything that was looked at is in order."

    @property
    def healthy(self) -> bool:
        """No error, and no warning."""
        return all(finding.severity is Severity.NOTE for finding in self.findings)


def examine(settings: Settings, app: Celery | None = None, only: Collection[str] = ()) -> Examination:
    """Check everything, or only for the findings of these codes. `app`: the app that the relay is installed in, if
    any."""
    wanted = {check: not only or not check.codes.isdisjoint(only) for check in CHECKS}
    # The last ones first: a check that finds out what they need may need something too.
    asked: set[Reached] = set()
    for check in reversed(CHECKS):
        if wanted[check] or not asked.isdisjoint(check.gives):
            asked.update(check.needs, check.uses)
    parts = {subject: Part(subject) for subject in SUBJECTS}
    with closing(Site(settings, app)) as site, ThreadPoolExecutor(len(AT_ONCE)) as pool:

        def run(checks: Iterable[Check]) -> None:
            for check in checks:
                if wanted[check] or not asked.isdisjoint(check.gives):
                    _run(site, check, parts[check.subject], only)

        list(pool.map(run, AT_ONCE))
        run(AFTERWARDS)
    return Examination([part for part in parts.values() if part.findings or part.in_order or part.skipped])


def refused(reason: OutboxError) -> Examination:
    """The examination, if the settings can't be used at all."""
    finding = error(
        SETTINGS,
        str(reason),
        "Nothing starts with these settings, so nothing else was checked.",
        "Correct it in outbox.toml, or in the environment: docs/settings.md.",
    )
    return Examination([Part("Settings", [finding])])


def _run(site: Site, check: Check, part: Part, only: Collection[str]) -> None:
    if not site.reached.issuperset(check.needs) or (check.needs and site.timed_out):
        part.skipped = True
        return
    try:
        results = list(check.run(site))
    except Exception as failed:
        if not isinstance(failed, OutboxError):
            log.debug("a check failed", exc_info=True)
        results = [_failed(check, failed)]
    # If nothing answers, all findings of this check are shown: they say why the wanted ones are not known.
    answered = not check.gives or check.gives[0] in site.reached
    shown = {*only, CHECK_FAILED} if only and answered else CODES
    for result in results:
        if isinstance(result, Finding) and result.code in shown:
            part.findings.append(result)
        elif isinstance(result, Fine) and not only:
            part.in_order.append(result.fact)


def _failed(check: Check, failed: Exception) -> Finding:
    name = check.run.__name__.replace("_", " ")
    first_line = f"{type(failed).__name__}: {str(failed).partition(chr(10))[0]}"
    reason = str(failed) if isinstance(failed, OutboxError) else first_line
    return warning(
        CHECK_FAILED,
        f"The check '{name}' could not be made: {reason}",
        f"The doctor does not know whether there are findings of {', '.join(sorted(check.codes))}.",
        "If the reason does not say what to do, run the doctor again. If it fails again, please report it.",
    )
