"""Faults of the relay's and the application's own processes."""

from __future__ import annotations

import os
import random
import sys
from contextlib import suppress
from pathlib import Path

import psutil

from lab.soak.faults.kind import FAKETIME, End, Kind, faketime
from lab.soak.stage import Stage
from outbox_tasks.local.processes import Child

AHEAD = (-3600, 3600)
"""Seconds by which a wrong clock is wrong."""

BUSY = 6

SLEEP = "import select, time\ntime.sleep = lambda seconds: select.select([], [], [], seconds) and None\n"
"""Python's own sleep fails under libfaketime where the monotonic clock is left alone, and waits for locks where not."""


def one_of(stage: Stage, chance: random.Random, prefix: str) -> Child:
    """One of the relay's processes whose names begin with `prefix`."""
    return chance.choice([child for child in stage.relay if child.name.startswith(prefix)])


def again(stage: Stage, child: Child, **env: str) -> None:
    """Start one of the relay's processes again, with these variables besides. The caller ends the former one."""
    options = {**child.options, "env": {**child.options["env"], **env}}
    stage.relay[stage.relay.index(child)] = Child.start(child.name, child.argv, **options)


def _pool(stage: Stage, chance: random.Random) -> psutil.Process:
    """A process of a publish worker's pool."""
    return chance.choice(psutil.Process(one_of(stage, chance, "publish").pid).children())


def _stopped(process: psutil.Process) -> End:
    process.suspend()

    def end() -> None:
        with suppress(psutil.NoSuchProcess):
            process.resume()

    return end


def child_killed(stage: Stage, chance: random.Random) -> None:
    _pool(stage, chance).kill()


def child_stopped(stage: Stage, chance: random.Random) -> End:
    return _stopped(_pool(stage, chance))


def worker_killed(stage: Stage, chance: random.Random) -> End:
    victim = one_of(stage, chance, "publish")
    victim.kill()
    again(stage, victim)
    return victim.end


def worker_stopped(stage: Stage, chance: random.Random) -> End:
    return _stopped(psutil.Process(one_of(stage, chance, "publish").pid))


def claim_killed(stage: Stage, chance: random.Random) -> None:
    _killed(stage, one_of(stage, chance, "claim"))


def claim_stopped(stage: Stage, chance: random.Random) -> End:
    return _stopped(psutil.Process(one_of(stage, chance, "claim").pid))


def beat_killed(stage: Stage, chance: random.Random) -> None:
    _killed(stage, one_of(stage, chance, "beat"))


def _killed(stage: Stage, victim: Child, **env: str) -> None:
    victim.end()
    again(stage, victim, **env)


def two_beats(stage: Stage, chance: random.Random) -> End:
    beat = one_of(stage, chance, "beat")
    return Child.start("second beat", beat.argv, **beat.options).end


def other_clock(place: Path, **clock: str) -> dict[str, str]:
    """The environment of a process with another time of day, as libfaketime reads it; how fast time passes stays the
    same."""
    place.mkdir(exist_ok=True)
    (place / "sitecustomize.py").write_text(SLEEP)
    path = os.pathsep.join(filter(None, [str(place), os.environ.get("PYTHONPATH")]))
    return {"LD_PRELOAD": str(FAKETIME[0]), "PYTHONPATH": path, "FAKETIME_DONT_FAKE_MONOTONIC": "1", **clock}


def clock_wrong(stage: Stage, chance: random.Random) -> End:
    victim = one_of(stage, chance, "")
    place = stage.relay.index(victim)
    clock = other_clock(stage.options.directory / "clock", FAKETIME=f"{chance.randint(*AHEAD):+d}s")
    _killed(stage, victim, **clock)

    def end() -> None:
        stage.relay[place].options = victim.options
        _killed(stage, stage.relay[place])

    return end


def clock_set_back(stage: Stage, chance: random.Random) -> End:
    victim = one_of(stage, chance, "beat")
    place, file = stage.relay.index(victim), stage.options.directory / "clock" / "ahead"
    clock = other_clock(file.parent, FAKETIME_TIMESTAMP_FILE=str(file), FAKETIME_CACHE_DURATION="1")
    file.write_text(f"{chance.randint(90, AHEAD[1]):+d}s")
    _killed(stage, victim, **clock)
    stage.relay[place].options = victim.options  # of a process that takes its place

    def end() -> None:
        file.write_text("+0s")

    return end


def application_killed(stage: Stage, chance: random.Random) -> None:
    chance.choice(stage.applications.children).kill()


def machine_busy(stage: Stage, chance: random.Random) -> End:
    loops = [Child.start("busy", [sys.executable, "-c", "while True: pass"]) for _ in range(BUSY)]

    def end() -> None:
        for loop in loops:
            loop.end()

    return end


KINDS = [
    Kind("child_killed", child_killed),
    Kind("child_stopped", child_stopped),
    Kind("worker_killed", worker_killed),
    Kind("worker_stopped", worker_stopped),
    Kind("claim_killed", claim_killed),
    Kind("claim_stopped", claim_stopped),
    Kind("beat_killed", beat_killed),
    Kind("two_beats", two_beats),
    Kind("clock_wrong", clock_wrong, faketime),
    Kind("clock_set_back", clock_set_back, faketime),
    Kind("application_killed", application_killed),
    Kind("machine_busy", machine_busy),
]
