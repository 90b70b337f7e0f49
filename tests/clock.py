"""Runs tests at another time: `python -m tests.clock '2027-02-28 23:58' [what pytest takes]`. The time is UTC; `TZ` is
the zone of the programs. Without arguments for pytest it runs the tests that know days.

The tests and all servers that they start see a clock that is so much ahead. It needs a C compiler.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

DATED = (
    "archive/test_export", "archive/test_replay", "integration/test_counts",
    "integration/test_inbox", "integration/test_migrations", "integration/test_retention",
    "integration/test_cli",
)  # fmt: skip


def main(moment: str, *arguments: str) -> int:
    compiler = shutil.which("cc")
    if compiler is None:
        print("tests.clock: NOT RUN, there is no C compiler (cc)")
        return 0
    dated = ("-q", "-n", "auto", "--dist", "loadfile", *(f"tests/{name}.py" for name in DATED))
    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o755)  # a server that drops its rights loads it, too
        library = Path(place, "clock.so")
        source = Path(__file__).with_suffix(".c")
        subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
        ahead = datetime.fromisoformat(moment).replace(tzinfo=UTC) - datetime.now(UTC)
        environment = {**os.environ, "LD_PRELOAD": str(library), "CLOCK_AHEAD": f"{ahead.total_seconds():.0f}"}
        command = [sys.executable, "-m", "pytest", *(arguments or dated)]
        return subprocess.run(command, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]) if len(sys.argv) > 1 and sys.argv[1] not in ("-h", "--help") else __doc__)
