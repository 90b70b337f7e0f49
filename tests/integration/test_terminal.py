"""What reaches a person's terminal, when everything that others can write is hostile."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from base64 import b64encode
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import insert, text

from outbox_tasks.cli import SECTIONS
from outbox_tasks.relay.store import Store
from tests.conftest import Rows, seconds_from_now
from tests.integration.conftest import environment

OVERLINE = "\x1b[53m"
"""An escape sequence that rich never writes of itself."""
EVIL = f"[red]evil[/red]\x1b]0;owned\x07{OVERLINE}\x9b31m\x7f\u202e\u2066:smile:\r!"
RAW = ("\x1b]", "\x07", OVERLINE, "\x9b", "\x7f", "\u202e", "\u2066", "\r!", "😄")
PATIENCE = 120

# One process for all of them: to start is most of what a command costs.
RUN_ALL = """
import json, sys
from outbox_tasks.cli import outbox
for arguments in json.loads(sys.argv[1]):
    print(f"== {arguments[0]}", flush=True)
    try:
        outbox.main(arguments, prog_name="outbox-tasks")
    except SystemExit:
        pass
    sys.stdout.flush()
"""


@pytest.fixture
def dead(store: Store, rows: Rows, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """The id of a dead letter that holds up its key, in an outbox where all that others can write is hostile."""
    monkeypatch.chdir(tmp_path)
    places = {"destinations": {EVIL: {"url": "a://b"}, "orders": {"url": "a://b"}}}
    feeds = {"eu": {"url": "sqlite:////no/such/file.db"}}
    more = {**places, "broker_url": store.settings.broker_url, "feeds": feeds, "stale_after": 1}
    for name, value in environment(store.settings, **more).items():
        monkeypatch.setenv(name, value)
    hostile = {
        "event_type": EVIL, "destination": EVIL, "key": EVIL, "aggregate_type": EVIL, "aggregate_id": EVIL,
        "payload": json.dumps({"a": EVIL}, ensure_ascii=False).encode(), "content_type": EVIL, "headers": {EVIL: EVIL},
        "locked_by": EVIL,
    }  # fmt: skip
    entry = {"at": EVIL, "what": EVIL, "attempt": 1, "by": EVIL, "code": EVIL, "error": EVIL, "why": EVIL}
    trouble = {"last_error_code": EVIL, "last_error": EVIL, "history": [entry]}
    [id] = rows.insert(1, **hostile, **trouble, status="dead", attempts=1, dead_at=seconds_from_now(-60))
    rows.insert(1, **hostile, locked_until=seconds_from_now(-60))
    [sent] = rows.insert(1, **hostile, locked_until=seconds_from_now(60))
    t, now = rows.tables, datetime.now(UTC)
    states = {"failures": 7, "error_code": EVIL, "error": EVIL, "opened_at": now, "pause_until": now + timedelta(1)}
    paused = {"paused_at": now, "paused_by": EVIL, "paused_why": EVIL}
    queues = {"queues": ["outbox.claim", EVIL], "pool": EVIL, "concurrency": 1}
    with rows.engine.begin() as connection:
        journal = f"{t.messages.schema}.outbox_journal"
        connection.execute(
            text(
                f"INSERT INTO {journal} SELECT seq, now(), 'sent', 1, :name, :name, "
                "int8multirange(int8range(seq, seq + 1))"
                f" FROM {t.messages} WHERE id = :id"
            ),
            {"name": EVIL, "id": sent},
        )
        connection.execute(text(f"DELETE FROM {t.messages.schema}.outbox_waiting"))
        connection.execute(insert(t.destinations).values(name=EVIL, **states))
        connection.execute(insert(t.destinations).values(name="orders", **paused))
        connection.execute(
            insert(t.audit).values(who=EVIL, why=EVIL, action="redrive", target=EVIL, facts={EVIL: EVIL})
        )
        former = {"former": b64encode(EVIL.encode()).decode()}
        connection.execute(insert(t.audit).values(seq=1000, who=EVIL, action="edit", target=EVIL, facts=former))
        connection.execute(
            insert(t.heartbeats).values(name=EVIL, kind="worker", seen_at=now + timedelta(1), facts=queues)
        )
        limit = f"INSERT INTO {t.messages.schema}.outbox_limits (destination, setting, value, who, why) "
        connection.execute(text(f"{limit} VALUES (:name, 'rate_limit', 2, :name, :name)"), {"name": EVIL})
        feed = f"INSERT INTO {t.messages.schema}.outbox_feeds (name, error, failed_at) VALUES (:name, :name, now())"
        connection.execute(text(feed), {"name": EVIL})
        words = dict.fromkeys(("code", "which", "severity", "fact", "cause", "remedy"), EVIL)
        connection.execute(insert(t.alerts).values(**words, since=now, seen_at=now, told_at=now, is_unposted=False))
    return id


def on_a_terminal(*commands: list[str], encoding: str, **env: str) -> str:
    """What these commands write to a terminal, on which nobody types."""
    ours, theirs = pty.openpty()
    argv = [sys.executable, "-c", RUN_ALL, json.dumps(commands)]
    environment = {**os.environ, "TERM": "xterm-256color", "PYTHONUTF8": "0", **env}
    process = subprocess.Popen(argv, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    written = b""
    try:
        while chunk := os.read(ours, 1 << 16):
            written += chunk
    except OSError:  # the other side is closed
        pass
    finally:
        os.close(ours)
    assert process.wait(PATIENCE) == 0, written.decode(errors="replace")[-3000:]
    return written.decode(encoding, errors="replace")


OTHERS = {"init", "up", "demo", "web"}
"""Commands that show nothing of messages."""


def commands(dead: str) -> list[list[str]]:
    return [
        ["list"], ["show", dead], ["list", "--by", "error"], ["list", "--by", "key"], ["status"], ["feed", "status"],
        ["doctor", "--alerts"], ["audit"],
        ["health", "--worker", "x"],
        ["doctor", "--only", "keys_blocked", "--only", "dead_letters", "--only", "breaker_open", "--only", "stale"],
        ["redrive", dead, "--dry-run"], ["redrive", "--all", "--dry-run"], ["discard", "--all", "--dry-run"],
        ["replay", "--all", "--dry-run"],
        ["show", dead, "--payload"], ["audit", "--payload", "1000"], ["status", "--prometheus"],
        ["discard", "--delete", "--all", "--dry-run"], ["edit", dead, "--payload", "/dev/null", "--dry-run"],
        ["export", "--to", EVIL], ["maintain"],
        ["list", "--destination", f"{EVIL}?"], ["limit", EVIL], ["resume", EVIL], ["pause", EVIL], ["drain"],
        ["try", "--all", "--dry-run"], ["audit", "--stop", "1000"],
    ]  # fmt: skip


def test_every_command_that_shows_what_others_wrote_is_among_them() -> None:
    known = {command for section in SECTIONS.values() for command in section}
    assert known - {arguments[0] for arguments in commands("")} <= OTHERS


@pytest.mark.parametrize(("columns", "encoding"), [("160", "utf-8"), ("80", "latin-1")])
def test_nothing_that_others_have_written_is_obeyed_and_no_terminal_knows_too_few_characters(
    dead: str, columns: str, encoding: str
) -> None:
    """And what others have written is no markup, and an id is never cut."""
    env = {"COLUMNS": columns, "PYTHONIOENCODING": encoding}
    found = on_a_terminal(*commands(dead), encoding=encoding, **env)
    parts: dict[str, str] = defaultdict(str)
    for part in found.split("== ")[1:]:
        command, _, shown = part.partition("\r\n")
        parts[command] += shown
    assert "Traceback" not in found
    for command, shown in parts.items():
        assert [raw for raw in RAW if raw in shown] == [], command
    for command in ("list", "show", "status", "doctor", "audit", "health", "edit"):
        assert "[red]evil" in parts[command].replace("\r\n", ""), command
    for command in ("list", "show"):
        assert dead in parts[command], command
