"""How a publisher is found by its URL, and what is refused before anything is sent."""

from __future__ import annotations

import importlib
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

import outbox_tasks
from outbox_tasks.destinations import batch_size_of, load
from outbox_tasks.errors import NotInstalled, UnknownPublisher
from tests.contract.messages import configured


def test_an_unknown_scheme_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UnknownPublisher, match=r"'orders'.*'pigeon'.*celery, .*redis\+stream"):
        load(*configured("pigeon://coop"))


@pytest.fixture
def distribution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Installs a package with this entry point and code, for real, on sys.path."""

    def install(code: str) -> None:
        (tmp_path / "pigeon_post.py").write_text(code)
        info = tmp_path / "pigeon_post-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: pigeon-post\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text("[outbox_tasks.publishers]\npigeon = pigeon_post:Pigeon\n")
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, "pigeon_post", raising=False)

    return install


def test_a_client_that_is_not_installed_is_named_with_the_extra(distribution: Callable[[str], None]) -> None:
    distribution("import no_such_client\nclass Pigeon: ...\n")
    with pytest.raises(NotInstalled, match=r"no_such_client.*outbox-tasks\[pigeon\]"):
        load(*configured("pigeon://coop"))


URLS = {
    "sqs://eu-north-1/123456789012/orders": ("aws", "boto3", "aws"),
    "celery://": ("celery_task", None, None),
    "grpcs://localhost:1": ("grpc", "grpc", "grpc"),
    "https://example.com/": ("http", "httpcore", "http"),
    "kafka://localhost/orders": ("kafka", "confluent_kafka", "kafka"),
    "amqp://localhost/": ("kombu", None, None),
    "azurestoragequeues://k@http://localhost/account": ("kombu", "azure.storage.queue", "azure"),
    "mqtts://localhost/orders": ("mqtt", "paho.mqtt.client", "mqtt"),
    "nats://localhost/orders": ("nats", "nats.errors", "nats"),
    "pubsub://shop/orders": ("pubsub", "google.pubsub_v1.types", "gcp"),
    "redis+stream://localhost/0/orders": ("redis_stream", None, None),
    "azureservicebus://p:k@localhost/orders": ("service_bus", "azure.servicebus", "azure"),
}
"""One of each client, with the folder of its publisher, a module of the client, and the extra that brings it."""

LOADS = """
import json, sys
from outbox_tasks.destinations import load
from outbox_tasks.settings import Settings

for url, client in json.loads(sys.argv[1]):
    settings = Settings(destinations={"orders": {"url": url, "claim_check": None}}, broker_url="redis://localhost/0")
    if client:
        sys.modules[client] = None
    try:
        load(settings.destinations["orders"], settings)
        print("loaded")
    except Exception as error:
        print(type(error).__name__, error)
    sys.modules.pop(client, None)
"""
"""Loads publishers without their clients, in a process of its own: what is imported here stays imported."""


def loads(cases: Iterable[tuple[str, str | None]], **more: Any) -> list[str]:
    argv = [sys.executable, "-c", LOADS, json.dumps([*cases])]
    ended = subprocess.run(argv, capture_output=True, text=True, **more)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.splitlines()


def test_the_extra_that_brings_each_client() -> None:
    clients = [(url, client, extra) for url, (_, client, extra) in URLS.items() if client]
    errors = loads((url, client) for url, client, _ in clients)
    for error, (_, client, extra) in zip(errors, clients, strict=True):
        assert re.search(rf"NotInstalled.*{re.escape(client)}.*outbox-tasks\[{extra}\]", error), error


def test_a_publisher_of_another_package_is_found(distribution: Callable[[str], None]) -> None:
    distribution(
        "class Pigeon:\n"
        "    def __init__(self, destination, settings):\n"
        "        self.seen = (destination.name, destination.url, settings.source)\n"
    )
    publisher: Any = load(*configured("pigeon://coop", source="/loft"))
    assert publisher.seen == ("orders", "pigeon://coop", "/loft")


@pytest.mark.parametrize(
    ("code", "size"),
    [("class Pigeon: ...", 100), ("class Pigeon:\n    batch_size = 3", 3), ("import no_such_client", 100)],
    ids=["says nothing", "says it", "is not installed"],
)
def test_the_batch_size_is_what_the_publisher_says(distribution: Callable[[str], None], code: str, size: int) -> None:
    distribution(code)
    assert batch_size_of(configured("pigeon://coop")[0]) == size
    assert batch_size_of(configured("no-such-scheme://coop")[0]) == 100


def test_to_delete_folders_and_their_entry_points_takes_nothing_else_away(tmp_path: Path) -> None:
    gone = ("aws", "grpc", "http", "kombu", "redis_stream")
    product = Path(outbox_tasks.__file__).parent
    copy = tmp_path / "outbox_tasks"
    shutil.copytree(product, copy, ignore=shutil.ignore_patterns("__pycache__", "*.js", "*.css"))
    folders = {folder.name for folder in (copy / "destinations").iterdir() if folder.is_dir()}
    assert folders == {folder for folder, _, _ in URLS.values()} | {"claim_check", "common"}
    for folder in (*gone, "claim_check"):
        shutil.rmtree(copy / "destinations" / folder)
    registered = [f"{entry.name} = {entry.value}" for entry in entry_points(group="outbox_tasks.publishers")]
    remaining = [line for line in registered if not any(f".{folder}" in line for folder in (*gone, "claim_check"))]
    (tmp_path / "outbox_tasks-1.dist-info").mkdir()
    (tmp_path / "outbox_tasks-1.dist-info" / "METADATA").write_text("Name: outbox-tasks\nVersion: 1\n")
    (tmp_path / "outbox_tasks-1.dist-info" / "entry_points.txt").write_text(
        "[outbox_tasks.publishers]\n" + "\n".join(remaining)
    )
    loaded = loads(((url, None) for url in URLS), env={"PYTHONPATH": str(tmp_path)}, cwd=tmp_path)
    expected = ["UnknownPublisher" if folder in gone else "loaded" for folder, _, _ in URLS.values()]
    assert [line.partition(" ")[0] for line in loaded] == expected


PAGES = {
    "aws": "aws.address", "azure-service-bus": "service_bus.url", "grpc": "grpc.publisher", "kafka": "kafka.publisher",
    "pubsub": "pubsub.connection", "webhooks": "http.options",
}  # fmt: skip


@pytest.mark.parametrize("page", PAGES)
def test_the_documentation_has_the_options_of_a_url(page: str) -> None:
    known = importlib.import_module(f"outbox_tasks.destinations.{PAGES[page]}").OPTIONS.keys()
    text = (Path(__file__).parents[2] / f"docs/destinations/{page}.md").read_text()
    rows = text.partition("| option |")[2].partition("\n\n")[0].splitlines()[2:]
    option = re.compile(r"`([a-z_]+\.?)")
    described = {name for row in rows for name in option.findall(row)}
    assert {name for row in rows for name in option.findall(row.split("|")[1])} <= known <= described
