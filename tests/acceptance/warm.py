"""Starts Celery's processes as forks of one that has imported what they need: a relay starts in a fraction of the time.

`python -m tests.acceptance.warm DIRECTORY` reads from its input, a line of JSON each, what to start, and answers with a
process number. In the directory it keeps the exit codes, each in a file named by the number.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

MODULES = (
    "celery.__main__", "celery.apps.beat", "celery.apps.worker", "celery.bin.beat", "celery.bin.celery",
    "celery.bin.worker", "celery.concurrency.prefork", "celery.concurrency.solo", "celery.worker.consumer.consumer",
    "kombu.transport.redis", "outbox_tasks.relay.store", "psycopg", "pydantic_settings",
    "sqlalchemy.dialects.postgresql.psycopg",
)  # fmt: skip
"""None of them reads the environment, which each process has of its own."""


def serve(codes: Path) -> dict[str, Any]:
    """Until the input ends. Returns in the forks only: what to become."""

    def reap(*_: object) -> None:
        try:
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                unfinished = codes / f"{ended[0]}.new"
                unfinished.write_text(str(os.waitstatus_to_exitcode(ended[1])))
                unfinished.rename(codes / str(ended[0]))
        except ChildProcessError:
            """There is none."""

    signal.signal(signal.SIGCHLD, reap)
    for line in sys.stdin:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})  # a number of a former process may come again
        if (pid := os.fork()) == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
            wanted: dict[str, Any] = json.loads(line)
            return wanted
        os.setpgid(pid, pid)
        (codes / str(pid)).unlink(missing_ok=True)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
        print(pid, flush=True)
    sys.exit()


def become(argv: list[str], env: dict[str, str], cwd: str, log: str) -> None:
    """What the interpreter would be that starts anew."""
    os.setpgid(0, 0)
    for number, path, flags in ((0, os.devnull, os.O_RDONLY), (1, log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)):
        opened = os.open(path, flags, 0o600)
        os.dup2(opened, number)
        os.close(opened)
    os.dup2(1, 2)
    os.chdir(cwd)
    former = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ.clear()
    os.environ.update(env)
    rest = [path for path in sys.path[1:] if path not in former]
    sys.path[:] = [cwd, *env.get("PYTHONPATH", "").split(os.pathsep), *rest]
    sys.argv[:] = argv


if __name__ == "__main__":
    for module in MODULES:
        importlib.import_module(module)
    gc.freeze()
    become(**serve(Path(sys.argv[1])))
    from celery.__main__ import main

    main()
