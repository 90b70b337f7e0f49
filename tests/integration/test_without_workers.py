"""The examples without workers: the function of AWS Lambda, and the lines of cron. Each drains a real outbox."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import yaml

from outbox_tasks.settings import Settings
from tests.conftest import MakeSettings, Rows, Stream, seconds_from_now

EXAMPLES = Path(__file__).parents[2] / "examples"
CRON = (EXAMPLES / "cron" / "outbox.cron").read_text()


@pytest.fixture
def function(
    settings: MakeSettings, rows: Rows, schema: str, stream: Stream, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> ModuleType:
    """The module, in an environment such as the template gives it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OUTBOX_DATABASE_URL", str(settings().database_url))
    monkeypatch.setenv("OUTBOX_DATABASE_SCHEMA", schema)
    monkeypatch.setenv("OUTBOX_DESTINATIONS", json.dumps({"orders": {"url": stream.url}}))
    spec = importlib.util.spec_from_file_location("function", EXAMPLES / "lambda" / "function.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(function: ModuleType, seconds: float) -> None:
    """As Lambda does, which tells a function of its time."""
    function.run({}, SimpleNamespace(get_remaining_time_in_millis=lambda: int(seconds * 1000)))


class TestFunction:
    def test_sends_what_is_due(self, function: ModuleType, rows: Rows, stream: Stream, capsys: Any) -> None:
        ids = rows.insert(5) + rows.insert(2, key="order:1")
        rows.insert(1, locked_until=seconds_from_now(600))
        run(function, 60)
        assert sorted(stream.ids()) == sorted(ids)
        assert json.loads(capsys.readouterr().out)["sent"] == 7

    def test_stops_in_good_order_when_its_time_is_over(self, function: ModuleType, rows: Rows, stream: Stream) -> None:
        """It has a second, for messages that go one by one. What it has not sent is in nobody's hands."""
        rows.insert(2000, attempts=1, last_error_code="failed_alone")
        run(function, 1)
        left = rows.hot()
        assert 0 < len(left) == 2000 - len(stream)
        assert {row.lease for row in left} == {None}
        run(function, 600)
        assert len(stream) == len(set(stream.ids())) == 2000

    def test_is_what_the_template_names(self, function: ModuleType) -> None:
        class Loader(yaml.SafeLoader):
            """Takes CloudFormation's own tags for what stands behind them."""

        Loader.add_multi_constructor("!", lambda loader, suffix, node: node.value)
        template = yaml.load((EXAMPLES / "lambda" / "template.yaml").read_text(), Loader)
        properties = template["Resources"]["Drain"]["Properties"]
        module, _, name = properties["Handler"].partition(".")
        assert (module, callable(getattr(function, name))) == ("function", True)
        assert properties["Timeout"] > function.LAST_SEND + Settings().send_timeout
        assert Settings().send_timeout < function.LAST_SEND


def lines_of_cron() -> list[str]:
    """The commands, as cron gives them to a shell."""
    return [line.split(maxsplit=6)[6] for line in CRON.splitlines() if line.startswith(("*", "17"))]


def test_cron_drains_silently(settings: MakeSettings, rows: Rows, schema: str, stream: Stream, tmp_path: Path) -> None:
    place = tmp_path / "outbox.env"
    place.write_text(
        f"OUTBOX_DATABASE_URL='{settings().database_url}'\nOUTBOX_DATABASE_SCHEMA={schema}\n"
        f"OUTBOX_DESTINATIONS='{json.dumps({'orders': {'url': stream.url}})}'\n"
    )
    ids = rows.insert(5)
    for line in lines_of_cron():
        argv = ["/bin/sh", "-c", line.replace("/etc/outbox/outbox.env", str(place))]
        env = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}
        done = subprocess.run(argv, env=env, cwd=tmp_path, capture_output=True, text=True)
        assert done.stdout + done.stderr == ""
    assert sorted(stream.ids()) == sorted(ids)
