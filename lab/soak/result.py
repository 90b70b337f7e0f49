"""The result of a run: the verdict, and what one must know to read and to repeat it. For programs: JSON."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lab.soak.options import RATE, Options
from lab.soak.verdict import Verdict
from outbox_tasks import __version__


@dataclass(frozen=True)
class Result:
    """A verdict, and how it came about."""

    options: Options
    verdict: Verdict
    not_run: Mapping[str, str]
    """Kinds of faults that can't happen here, and why."""
    missed: Mapping[str, int]
    """Faults that found nothing to hurt, by kind."""
    planned: int
    seconds: float
    drained: float
    """Seconds from the last fault until nothing was left to be delivered."""

    @property
    def command(self) -> str:
        """Repeats the run."""
        o = self.options
        words = ["python", "-m", "lab", "soak", "--seed", str(o.seed), "--minutes", f"{o.minutes:g}"]
        words += ["--short-leases"] if o.short_leases else []
        words += ["--flush-broker"] if o.may_flush else []
        words += [word for extra in o.extras for word in ("--with", extra)]
        words += [word for kind in o.only for word in ("--only", kind)]
        words += ["--alone"] if o.alone else []
        words += ["--rate", f"{o.rate:g}"] if o.rate != RATE else []
        words += ["--every", f"{o.every:g}"] if o.every else []
        return shlex.join(words)

    def json(self) -> dict[str, Any]:
        """For programs."""
        verdict = asdict(self.verdict)
        recoveries = {kind: recovery._asdict() for kind, recovery in self.verdict.recoveries.items()}
        lists = ("lost", "ghosts", "stuck", "died", "unexplained", "overtakes")
        return {
            "ok": not self.verdict.problems,
            "problems": self.verdict.problems,
            "version": __version__,
            "commit": commit(),
            "seed": self.options.seed,
            "minutes": self.options.minutes,
            "command": self.command,
            **verdict,
            **{name: len(verdict[name]) for name in lists},
            "ids": {name: verdict[name] for name in lists if verdict[name]},
            "recoveries": recoveries,
            "planned": self.planned,
            "missed": dict(self.missed),
            "not_run": dict(self.not_run),
            "seconds": self.seconds,
            "drained": self.drained,
        }


def commit() -> str | None:
    """The commit of a checkout; None: it is installed."""
    with suppress(OSError, subprocess.SubprocessError):
        argv = ["git", "describe", "--always", "--dirty", "--abbrev=10"]
        here = Path(__file__).parent
        done = subprocess.run(argv, cwd=here, capture_output=True, text=True, check=True, timeout=10)
        return done.stdout.strip() or None
    return None
