"""The units in examples/systemd, by systemd's own tool; and that they run the whole relay."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from outbox_tasks import Settings
from outbox_tasks.broker.names import ALL_QUEUES

EXAMPLES = Path(__file__).parents[2] / "examples" / "systemd"
SERVICES = sorted(EXAMPLES.glob("*.service"))
EXPOSED = 2.0
"""What `systemd-analyze security` may say at most, of 10. A service without any protection has 9.6."""


@pytest.fixture
def units(tmp_path: Path) -> Path:
    """The units, with programs that are there: systemd looks for them."""
    made = tmp_path / "units"
    shutil.copytree(EXAMPLES, made)
    for unit in made.glob("*.service"):
        unit.write_text(unit.read_text().replace("/opt/outbox/bin", str(Path(sys.executable).parent)))
    return made


def analyze(*argv: str, units: Path) -> str:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed (it comes with systemd)")
    done = subprocess.run(["systemd-analyze", *argv], cwd=units, capture_output=True, text=True)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    return said


def test_systemd_takes_the_units(units: Path) -> None:
    names = [f"./{path.name}" for path in units.iterdir() if path.is_file()]
    assert analyze("verify", "--man=no", "--recursive-errors=no", *sorted(names), units=units) == ""


@pytest.mark.parametrize("name", [path.name for path in SERVICES])
def test_a_service_is_exposed_little(units: Path, name: str) -> None:
    said = analyze("security", "--offline=true", "--no-pager", f"./{name}", units=units)
    [exposed] = re.findall(r"Overall exposure level for .*: ([\d.]+)", said)
    assert float(exposed) <= EXPOSED, said


def setting(name: str, text: str) -> list[str]:
    return re.findall(rf"^{name}=(.*)$", text, re.MULTILINE)


def test_the_services_serve_every_queue_and_the_target_starts_them() -> None:
    queues = [
        queue for path in SERVICES for found in re.findall(r" -Q (\S+)", path.read_text()) for queue in found.split(",")
    ]
    assert sorted(queues) == sorted(ALL_QUEUES)
    [wanted] = setting("Wants", (EXAMPLES / "outbox.target").read_text())
    started = {re.sub(r"@\d+", "@", name) for name in wanted.split()}
    assert {path.name for path in SERVICES} - started == {"outbox-init.service", "outbox-feeds@.service"}


def test_a_service_starts_again_and_has_time_to_end() -> None:
    shared = (EXAMPLES / "outbox-.service.d" / "relay.conf").read_text()
    [seconds] = setting("TimeoutStopSec", shared)
    assert int(seconds) > Settings().hard_time_limit
    assert setting("KillMode", shared) == ["mixed"]
    assert {path.name: setting("Restart", path.read_text()) for path in SERVICES} == {
        path.name: ["on-failure" if "init" in path.name else "always"] for path in SERVICES
    }
