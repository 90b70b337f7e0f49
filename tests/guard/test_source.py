"""`outbox-tasks check` finds the calls in source that go past the outbox."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from textwrap import indent

import pytest

from outbox_tasks.guard.source import KINDS, find


def kinds(tmp_path: Path, code: str) -> list[str]:
    file = tmp_path / "shop.py"
    file.write_text(code, encoding="utf-8")
    return [finding.kind for finding in find(file)]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("with session.begin():\n    mail.delay(1)", ["inside"]),
        ("async with async_session.begin() as s:\n    s.add(o)\n    mail.apply_async((1,))", ["inside"]),
        ("with transaction.atomic():\n    app.send_task('shop.mail')", ["inside"]),
        ("with transaction.atomic():\n    chain(a.si(), b.si()).apply_async()", ["inside"]),
        ("with session.begin():\n    pass\nmail.delay(1)", ["after"]),
        ("session.add(o)\nmail.delay(o.id)\nsession.commit()", ["before"]),
        ("session.add(o)\nsession.commit()\nmail.delay(o.id)", ["after"]),
        ("session.commit()\nsession.add(o)\nmail.delay(o.id)\nsession.commit()", ["before"]),
        ("session.commit()\nsession.add(o)\nsession.commit()\nmail.delay(o.id)\nsession.commit()", ["after"]),
        ("transaction.on_commit(mail.delay)", ["on commit"]),
        ("transaction.on_commit(lambda: mail.apply_async((1,)))", ["on commit"]),
        ("transaction.on_commit(partial(mail.delay, 1))", ["on commit"]),
        ("def later():\n    mail.delay(1)\ntransaction.on_commit(later)", ["on commit"]),
        ("def later():\n    mail.delay(1)\ntransaction.on_commit(lambda: later())", ["on commit"]),
        ("mail.delay_on_commit(1)", ["on commit"]),
        ("mail.delay(1)", []),
        ("transaction.on_commit(clear_cache)", []),
        ("with session.begin():\n    def later():\n        mail.delay(1)", []),
        ("with session.begin(), outbox.capture(session):\n    mail.delay(1)", []),
        ("with session.begin():\n    with outbox.direct():\n        mail.delay(1)", []),
        ("with session.begin():\n    outbox.delay(session, mail, 1)", []),
        ("session.add(o)\nwith outbox.capture(session):\n    mail.delay(1)\nsession.commit()", []),
        ("with open(path) as f:\n    mail.delay(1)", []),
    ],
)
def test_of_a_function(tmp_path: Path, body: str, expected: list[str]) -> None:
    assert kinds(tmp_path, f"def create():\n{indent(body, '    ')}\n") == expected
    assert kinds(tmp_path, f"class View:\n    async def create(self):\n{indent(body, ' ' * 8)}\n") == expected


def test_of_a_decorator(tmp_path: Path) -> None:
    assert kinds(tmp_path, "@transaction.atomic\ndef create():\n    mail.delay(1)\n") == ["inside"]
    assert kinds(tmp_path, "@atomic(using='shop')\ndef create():\n    mail.delay(1)\n") == ["inside"]
    assert kinds(tmp_path, "@cache\ndef create():\n    mail.delay(1)\n") == []


def test_the_command_names_each_place_and_ends_with_1(tmp_path: Path) -> None:
    def check(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [Path(sys.executable).with_name("outbox-tasks"), "check", *arguments]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    (tmp_path / "shop/.hidden").mkdir(parents=True)
    (tmp_path / "shop/node_modules").mkdir()
    past = "def create():\n    with session.begin():\n        mail.delay(1)\n"
    for name in ("views.py", ".hidden/a.py", "node_modules/a.py", "notes.txt"):
        (tmp_path / "shop" / name).write_text(past)
    (tmp_path / "shop/broken.py").write_text("def create(:\n")
    found = check("shop")
    assert (found.returncode, found.stderr.split(".")[0]) == (1, "2 calls may go past the outbox")
    assert found.stdout.splitlines() == [
        "shop/broken.py:1: invalid syntax (<unknown>, line 1) so this file was not read",
        f"shop/views.py:3: mail.delay {KINDS['inside']}",
    ]
    facts = json.loads(check("shop/views.py", "--json").stdout)
    assert facts == [{"path": "shop/views.py", "line": 3, "kind": "inside", "call": "mail.delay"}]
    (tmp_path / "shop/views.py").write_text("")
    clean = check("shop/views.py")
    assert (clean.returncode, clean.stdout) == (0, "Nothing found.\n")
