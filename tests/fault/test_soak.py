"""All kinds of faults at once, as users run them: nothing is lost, no message of a key arrives behind a later one, and
each repetition has its cause on the row."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SEED, SECONDS, EVERY = 11_995, 8, 0.5
"""Faults of all areas, and none that only takes the processors from other tests."""

RATE = 50


@pytest.mark.timeout(300)
def test_under_all_faults_at_once_nothing_is_lost_or_overtaken(tmp_path: Path) -> None:
    place = tmp_path / "soak"
    argv = [sys.executable, "-m", "lab", "soak", "--json", "--short-leases", "--directory", str(place)]
    argv += ["--seed", str(SEED), "--minutes", str(SECONDS / 60), "--every", str(EVERY)]
    argv += ["--rate", str(RATE)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout)
    print(json.dumps({name: value for name, value in told.items() if name not in ("recoveries", "memory")}))
    planned = json.loads((place / "plan.json").read_text())
    assert len(planned) == told["planned"] >= SECONDS
    assert told["faults"] + sum(told["missed"].values()) == told["planned"]
    assert told["committed"] > 200
    assert told["rolled_back"] > 0
    assert sum(told["transitions"].values()) > 3 * told["committed"]
    # What a look into it needs is there.
    assert len((place / "rows.jsonl").read_text().splitlines()) == told["committed"]
    assert list(place.glob("logs/publish1.log"))
    assert (place / "database/postgres/data/PG_VERSION").exists()
