"""`outbox-tasks events`, as people and CI use it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

SPECIFICATION = Path(__file__).parents[2] / "node_modules/@asyncapi/specs/schemas/3.0.0.json"

SHOP = """
from datetime import date
import msgspec
from pydantic import BaseModel
from outbox_tasks import Outbox, Settings

class Line(BaseModel):
    article: str
    pieces: int

class Order(BaseModel):
    no: int
    lines: list[Line]

class Paid(msgspec.Struct):
    no: int
    on: date

url = "amqp://user:s3cret@localhost/events"
outbox = Outbox(Settings(destinations={"stream": url}, routes={"order.*": ["stream"]}))
outbox.event("order.created", Order)
outbox.event("order.paid/eu", Paid)
nothing = Outbox(outbox.settings)
"""


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(SHOP, encoding="utf-8")
    return tmp_path


def run(shop: Path, *arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    command = [Path(sys.executable).with_name("outbox-tasks"), "events", *arguments]
    return subprocess.run(command, cwd=shop, input=stdin, capture_output=True, text=True, check=False)


def test_exported_documents_describe_the_events_without_secrets(shop: Path) -> None:
    exported = run(shop, "export", "shop:outbox", "events")
    assert (exported.returncode, exported.stdout) == (0, "2 events in events\n")
    names = {path.name for path in (shop / "events").iterdir()}
    assert names == {"asyncapi.json", "order.created.schema.json", "order.paid_2f_eu.schema.json"}
    assert not any("s3cret" in path.read_text() for path in (shop / "events").iterdir())

    order = json.loads((shop / "events/order.created.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(order)
    jsonschema.validate({"no": 7, "lines": [{"article": "a", "pieces": 1}]}, order)
    with pytest.raises(jsonschema.ValidationError, match="'article' is a required property"):
        jsonschema.validate({"no": 7, "lines": [{"pieces": 1}]}, order)
    paid = json.loads((shop / "events/order.paid_2f_eu.schema.json").read_text())
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"no": "seven", "on": "2027-01-02"}, paid)

    document = json.loads((shop / "events/asyncapi.json").read_text())
    assert document["asyncapi"] == "3.0.0"
    assert document["info"] == {"title": "Events", "version": "1"}
    messages = document["channels"]["stream"]["messages"]
    assert messages["order.paid_2f_eu"] == {"$ref": "#/components/messages/order.paid_2f_eu"}
    assert set(document["components"]["schemas"]) == {"Line", "Order", "Paid"}
    if not SPECIFICATION.exists():
        pytest.skip("no @asyncapi/specs: npm install")
    specification = json.loads(SPECIFICATION.read_text())
    jsonschema.validators.validator_for(specification)(specification).validate(document)


def test_a_change_that_breaks_ends_with_1_and_says_what_and_why(shop: Path) -> None:
    run(shop, "export", "shop", ".")
    old = (shop / "asyncapi.json").read_text()
    same = run(shop, "diff", "asyncapi.json", "shop:outbox")
    assert (same.returncode, same.stdout) == (0, "No change.\n")

    changed = SHOP.replace("pieces: int", "pieces: int\n    note: str = ''").replace(
        "    no: int\n    lines", "    lines"
    )
    (shop / "shop.py").write_text(changed, encoding="utf-8")
    broken = run(shop, "diff", "-", "shop:outbox", stdin=old)
    assert broken.returncode == 1
    assert "breaks  order.created  no            field removed" in broken.stdout
    assert "safe    order.created  lines[].note  optional field added" in broken.stdout
    assert broken.stderr.startswith("1 change would break consumers or stored messages. Keep the old event")
    facts = json.loads(run(shop, "diff", "-", "shop:outbox", "--json", stdin=old).stdout)
    assert [(change["place"], change["grade"]) for change in facts] == [("no", "breaks"), ("lines[].note", "safe")]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("export", "shop:nothing", "."), "it declares no event"),
        (("export", "shop:url", "."), "it is no outbox_tasks.Outbox"),
        (("export", "shop:missing", "."), "has no attribute 'missing'"),
        (("export", "missing", "."), "No module named 'missing'"),
        (("diff", "shop.py", "shop:outbox"), "it is no asyncapi.json"),
        (("diff", "empty.json", "shop:outbox"), "it is no asyncapi.json"),
    ],
)
def test_what_can_not_be_read_is_told_in_a_line(shop: Path, arguments: tuple[str, ...], reason: str) -> None:
    (shop / "empty.json").write_text("{}")
    ended = run(shop, *arguments)
    assert ended.returncode == 1
    assert reason in ended.stderr
    assert "Traceback" not in ended.stderr
