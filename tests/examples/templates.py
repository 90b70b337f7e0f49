"""Templates that others make, copied by their own generators, and the lines of docs/how-to/templates.md that give such
a project an outbox.

`OUTBOX_TEMPLATES` names a folder or an address with the repositories as owner/name. Without it they are on GitHub, and
a test says why it is skipped if they can't be reached.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from uv import find_uv_bin

from tests.conftest import GIVEN
from tests.examples.conftest import Project
from tests.matrix import ROOT, interpreter

PAGE = ROOT / "docs/how-to/templates.md"
UV = Path(find_uv_bin())

MOST, LONGEST = 12, 100
"""Lines that are added or changed, and the characters of each."""

PORTS = {"redis": 6379, "rabbitmq": 5672}
"""Where pages see the servers."""

NEWEST = "2026-11-20"
"""What others release after this day is not installed. So a test that fails has found a change of ours."""

OFFLINE = re.compile("dns error|Failed to fetch|error sending request")


def repository(name: str, tag: str) -> str:
    """Where git finds this template. Skips the test if that can't be reached, unless somebody said where it is."""
    place = GIVEN.get("OUTBOX_TEMPLATES", "https://github.com")
    url = f"{place if '://' in place else Path(place).absolute().as_uri()}/{name}"
    argv, quiet = ["git", "ls-remote", "--exit-code", url, tag], {**os.environ, "GIT_TERMINAL_PROMPT": "0"}
    try:
        subprocess.run(argv, capture_output=True, text=True, env=quiet, timeout=60, check=True)
    except subprocess.SubprocessError as error:
        said = (getattr(error, "stderr", None) or str(error)).strip()
        (pytest.fail if "OUTBOX_TEMPLATES" in GIVEN else pytest.skip)(f"{url} {tag} can't be reached: {said}")
    return url


def python(release: str) -> str:
    """An interpreter of this release."""
    return interpreter(release) or pytest.skip(f"there is no Python {release} on this machine")


def generate(directory: Path, interpreter: str, package: str, *argv: str) -> None:
    """Run a generator of the package index in this directory. A template may call uv itself."""
    path = f"{UV.parent}{os.pathsep}{os.environ['PATH']}"
    env = {"PATH": path, "UV_PYTHON": interpreter}
    _uv(directory, env, "tool", "run", "--python", sys.executable, "--from", package, *argv)


def install(project: Project, interpreter: str, *requirements: str) -> None:
    """Make the project's environment, with our own package as it stands here; the project uses it from now on."""
    place = project.scratch / "venv"
    _uv(project.directory, {}, "venv", "--quiet", "--python", interpreter, str(place))
    project.python = str(place / "bin/python")
    project.env["PATH"] = f"{place / 'bin'}{os.pathsep}{os.environ['PATH']}"
    _uv(project.directory, {}, "pip", "install", "--python", project.python, "-e", str(ROOT), *requirements)


def _uv(directory: Path, env: dict[str, str], *argv: str) -> None:
    env = {**os.environ, "UV_EXCLUDE_NEWER": NEWEST, "UV_SYSTEM_CERTS": "1", **env}
    done = subprocess.run([UV, *argv], cwd=directory, env=env, capture_output=True, text=True, timeout=240)
    if done.returncode:
        said = f"{done.stdout}\n{done.stderr}"
        if offline := OFFLINE.search(said):
            pytest.skip(f"the package index can't be reached: {said[offline.start() :].partition(chr(10))[0]}")
        pytest.fail(f"uv {' '.join(argv)}: {said[-3000:]}")


def adopt(directory: Path, heading: str, page: Path = PAGE, **servers: str) -> None:
    """Make the changes that a page has under this heading, with servers at these addresses. They are few."""
    found = re.search(rf"^## {re.escape(heading)}\n.*?^```diff\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)
    assert found, f"{page.name} shows no changes under {heading}"
    for change in found[1].split("Index: ")[1:]:
        name, _, hunks = change.partition("\n")
        file = directory / name
        text = file.read_text() if file.exists() else ""
        for hunk in hunks.split("@@\n"):
            lines = hunk.splitlines()
            old = "".join(f"{line[1:]}\n" for line in lines if line[:1] in " -")
            new = "".join(f"{line[1:]}\n" for line in lines if line[:1] in " +")
            for server, address in servers.items():
                old, new = (part.replace(f"localhost:{PORTS[server]}", address) for part in (old, new))
            assert f"\n{text}".count(f"\n{old}") == 1, f"{name} has not once:\n{old}"
            text = f"\n{text}".replace(f"\n{old}", f"\n{new}")[1:]
        file.write_text(text)
    added = [line for line in found[1].splitlines() if line.startswith("+")]
    assert len(added) <= MOST, "\n".join(added)
    assert max(map(len, added)) <= LONGEST + len("+"), "\n".join(added)
