"""Plants each fault in a copy of the checkout, and says whether its tests see it."""

from __future__ import annotations

import argparse
import itertools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.mutants import ROOT, Fault, rooms

FAULT_SECONDS = 60
"""How much longer than without a fault its tests may take."""
SHARE_WANTED = 0.95
LEFT_OUT = shutil.ignore_patterns(
    ".git", ".venv", "node_modules", "build", "dist", "__pycache__", ".*_cache", ".hypothesis"
)
LOCATE = "import outbox_tasks, tests; print(outbox_tasks.__file__, tests.__file__)"


@dataclass
class Result:
    verdict: str
    """seen, not seen, or broken: the tests fail without the fault, or nothing was tested."""
    seconds: float
    output: str = ""


@contextmanager
def copied() -> Iterator[Path]:
    """A copy of the checkout. Python's processes import from it, wherever they start."""
    with tempfile.TemporaryDirectory(prefix="mutants-", ignore_cleanup_errors=True) as directory:
        place = Path(directory).resolve()
        place.chmod(0o755)  # some servers drop their rights and read there
        root = place / "checkout"
        shutil.copytree(ROOT, root, symlinks=True, ignore=LEFT_OUT)
        if (ROOT / "node_modules").exists():
            (root / "node_modules").symlink_to(ROOT / "node_modules")
        argv = [sys.executable, "-c", LOCATE]
        files = subprocess.check_output(argv, cwd=place, env=environment(root), text=True).split()
        if not all(Path(file).is_relative_to(root) for file in files):
            sys.exit(f"Python imports {files}, not the copy in {root}")
        yield root


def environment(root: Path) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(root)}


def run(root: Path, tests: str, limit: float) -> Result:
    """What the tests say of this copy."""
    pytest_options = f"-x -q -m= -p no:cacheprovider --timeout={limit:.0f}"
    argv = [sys.executable, "-m", "pytest", *pytest_options.split(), *tests.split()]
    began = time.monotonic()
    with tempfile.TemporaryFile("w+") as log:
        pytest = subprocess.Popen(argv, cwd=root, env=environment(root), stdout=log, stderr=log, start_new_session=True)
        try:
            code = pytest.wait(limit)
        except subprocess.TimeoutExpired:
            code = 1  # what hangs is seen
            end(pytest)
        log.seek(0)
        output = log.read()
    # 1: a test failed. 2: a module can't be imported. With another code pytest itself did not work.
    verdicts = {0: "not seen" if " passed" in output else "broken", 1: "seen", 2: "seen"}
    return Result(verdicts.get(code, "broken"), time.monotonic() - began, output)


def end(pytest: subprocess.Popen[bytes]) -> None:
    """As Ctrl-C does, so that it ends the servers that it started; by force if that takes long."""
    pytest.send_signal(signal.SIGINT)
    try:
        pytest.wait(20)
    except subprocess.TimeoutExpired:
        os.killpg(pytest.pid, signal.SIGKILL)
        pytest.wait()


def try_all(tests: str, faults: list[Fault]) -> list[tuple[Fault, Result]]:
    """The faults that the same tests must see, one after another in one copy."""
    with copied() as root:
        without = run(root, tests, 5 * FAULT_SECONDS)
        if without.verdict != "not seen":
            return [(fault, Result("broken", without.seconds, without.output)) for fault in faults]
        results = []
        # Python compares the second of a file's change with that of what it compiled.
        for change, fault in enumerate(faults, 1):
            file = root / fault.file
            whole = file.read_text()
            try:
                file.write_text(fault.planted(root))
            except (ValueError, SyntaxError) as error:
                results.append((fault, Result("broken", 0, str(error))))
                continue
            os.utime(file, (time.time() + 10 * change,) * 2)
            results.append((fault, run(root, tests, without.seconds + FAULT_SECONDS)))
            file.write_text(whole)
            os.utime(file, (time.time() + 10 * change + 5,) * 2)
        return results


def main() -> int:
    known = rooms()
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("room", nargs="*", help=f"by default all: {', '.join(known)}")
    parser.add_argument("--jobs", type=int, default=1, help="copies that are tested at the same time")
    parser.add_argument("--only", default="", metavar="TEXT", help="faults that have this in their file or sentence")
    options = parser.parse_args()
    if unknown := set(options.room) - set(known):
        parser.error(f"no such room: {', '.join(unknown)}")
    faults = [fault for name in options.room or known for fault in known[name]]
    faults = [fault for fault in faults if options.only in f"{fault.file} {fault.breaks}"]
    by_tests = itertools.groupby(sorted(faults, key=lambda fault: fault.tests), key=lambda fault: fault.tests)
    verdicts = []
    with ThreadPoolExecutor(options.jobs) as pool:
        groups = [pool.submit(try_all, tests, list(group)) for tests, group in by_tests]
        for group in groups:
            for fault, result in group.result():
                verdicts.append(result.verdict)
                print(f"{result.verdict:8} {result.seconds:4.0f} s  {fault.file}: {fault.breaks}", flush=True)
                if result.verdict == "broken":
                    print("    " + "\n    ".join(result.output.splitlines()[-4:]), flush=True)
    seen = verdicts.count("seen")
    print(f"{seen} of {len(verdicts)} seen, {verdicts.count('broken')} broken")
    return 0 if verdicts and seen >= SHARE_WANTED * len(verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
