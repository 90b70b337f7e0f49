"""How a publisher is found by its URL, what a URL may say, and what is refused before anything is sent."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from outbox_tasks.destinations import batch_size_of, load
from outbox_tasks.errors import ConfigurationError, NotInstalled, UnknownPublisher
from outbox_tasks.model import Outcome
from outbox_tasks.relay.publishers import SharedPublisher
from outbox_tasks.settings import Settings
from tests.contract.messages import configured, message


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


def test_a_publisher_is_used_again_after_an_error(distribution: Callable[[str], None]) -> None:
    """It knows best which of its connections to give up."""
    made = "class Pigeon:\n    made = closed = 0\n    def __init__(self, *_): Pigeon.made += 1\n"
    made += "    def close(self): Pigeon.closed += 1\n"
    distribution(made + "    def publish(self, messages): raise OSError(Pigeon.made)\n")
    shared = SharedPublisher(*configured("pigeon://coop"))
    for _ in range(2):
        with pytest.raises(OSError, match=r"^1$"):
            shared.publish([])
    shared._free *= 2  # as after two sends at once
    shared.close()
    assert sys.modules["pigeon_post"].Pigeon.closed == 2


GUARDED = """
import time
from outbox_tasks.model import Outcome
answers, sizes, passwords = [Outcome.sent(), Outcome.outage("unauthorized", "who?"), Outcome.behind()], [], []
class Pigeon:
    asks_password = True
    def __init__(self, destination, _): self.destination = destination
    def publish(self, messages):
        time.sleep(0.06)
        passwords.append(self.destination.password.ask())
        sizes.append(len(messages))
        return answers[-len(messages):]
def password(): return str(len(passwords))
"""


@pytest.mark.parametrize(
    ("send_timeout", "first", "sizes"),
    [(600, Outcome.sent(), [3, 2]), (600, Outcome.retry("busy", "later"), [3]), (0.1, Outcome.sent(), [3])],
    ids=["at once", "beside another failure", "slowly"],
)
def test_what_a_refusal_of_the_password_has_left_is_sent_once_more_with_another_one(
    distribution: Callable[[str], None], send_timeout: float, first: Outcome, sizes: list[int]
) -> None:
    distribution(GUARDED)
    orders = {"url": "pigeon://coop", "password": {"function": "pigeon_post:password"}}
    settings = Settings(destinations={"orders": orders}, send_timeout=send_timeout)
    publisher, pigeon_post = SharedPublisher(settings.destinations["orders"], settings), sys.modules["pigeon_post"]
    pigeon_post.answers[0] = first
    assert publisher.publish([message(number) for number in range(3)]) == pigeon_post.answers
    assert (pigeon_post.sizes, pigeon_post.passwords) == (sizes, ["0", "1"][: len(sizes)])
    settings.destinations["orders"].password.forget()  # type: ignore[union-attr]


def test_a_client_that_is_not_installed_is_named_with_the_extra(distribution: Callable[[str], None]) -> None:
    distribution("import no_such_client\nclass Pigeon: ...\n")
    with pytest.raises(NotInstalled, match=r"no_such_client.*outbox-tasks\[pigeon\]"):
        load(*configured("pigeon://coop"))


URLS = {
    "sqs://eu-north-1/123456789012/orders": ("boto3", "aws"),
    "grpcs://localhost:1": ("grpc", "grpc"),
    "https://example.com/": ("httpcore", "http"),
    "kafka://localhost/orders": ("confluent_kafka", "kafka"),
    "azurestoragequeues://k@http://localhost/account": ("azure.storage.queue", "azure"),
    "mqtts://localhost/orders": ("paho.mqtt.client", "mqtt"),
    "nats://localhost/orders": ("nats.errors", "nats"),
    "pubsub://shop/orders": ("google.pubsub_v1.types", "gcp"),
    "azureservicebus://p:k@localhost/orders": ("azure.servicebus", "azure"),
}
"""One of each client that may be missing, with a module of the client, and the extra that brings it."""

LOADS = """
import json, sys
from outbox_tasks.destinations import load
from outbox_tasks.settings import Settings

for url, client in json.loads(sys.argv[1]):
    settings = Settings(destinations={"orders": {"url": url}})
    sys.modules[client] = None
    try:
        load(settings.destinations["orders"], settings)
        print("loaded")
    except Exception as error:
        print(type(error).__name__, error)
    del sys.modules[client]
"""
"""Loads publishers without their clients, in a process of its own: what is imported here stays imported."""


def test_the_extra_that_brings_each_client() -> None:
    cases = json.dumps([(url, client) for url, (client, _) in URLS.items()])
    ended = subprocess.run([sys.executable, "-c", LOADS, cases], capture_output=True, text=True, check=True)
    for error, (client, extra) in zip(ended.stdout.splitlines(), URLS.values(), strict=True):
        assert re.search(rf"NotInstalled.*{re.escape(client)}.*outbox-tasks\[{extra}\]", error), error


@pytest.mark.parametrize(
    ("code", "size"),
    [("class Pigeon: ...", 100), ("class Pigeon:\n    batch_size = 3", 3), ("import no_such_client", 100)],
    ids=["says nothing", "says it", "is not installed"],
)
def test_the_batch_size_is_what_the_publisher_says(distribution: Callable[[str], None], code: str, size: int) -> None:
    distribution(code)
    assert batch_size_of(configured("pigeon://coop")[0]) == size
    assert batch_size_of(configured("no-such-scheme://coop")[0]) == 100


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


SERVICE_BUS = "azureservicebus://p:hunter2"
QUEUES = "amqp://u:hunter2@h"

REFUSED = [
    ("redis+stream://localhost/0/s?maxlen=many", "maxlen must be a number from 1"),
    ("redis+stream://localhost/0/s?maxlen=0", "maxlen must be a number from 1"),
    ("redis+stream://localhost/0/s?maxlen=5&maxlen=6", "twice"),
    ("redis+stream://localhost/0/s?minlen=5", "unknown option. redis+stream:// URLs have maxlen"),
    ("redis+stream://localhost/stream/more", "/db/stream"),
    ("redis+stream://:hunter2@localhost:port/0/s", "not a URL"),
    ("redis+stream://user:hunter2/x@localhost/0/s", ""),
    ("celery://host/path", "with options only"),
    ("celery://?accept=jsno&broker=redis://localhost/0", "accept names serializers"),
    ("celery://?broker=", "broker must be a text that is not empty"),
    ("celery://?queue=shop", "set broker_url"),
    ("celery://?broker=nowhere://localhost", "its broker can't be used"),
    ("celery://?broker=rediss://:hunter2@h/0?ssl_cert_reqs=maybe", "its broker can't be used"),
    ("grpc://shop.example", "host:port"),
    ("grpc://user:hunter2@shop.example:50051", "?token="),
    ("grpc://shop.example:50051?token=hunter2%0aevil", "its option token must be"),
    ("grpc://shop.example:50051?ca_file=/etc/ca.pem", "grpcs://"),
    ("grpcs://shop.example:50051?cert_file=/etc/cert.pem", "go together"),
    ("https:///hooks", "must have a host"),
    ("https://shop.example/#part", "no fragment"),
    ("https://shop.example/?outbox_secret=hunter2!", "outbox_secret must be base64"),
    ("https://shop.example/?outbox_secret=whsec_", "outbox_secret must be base64"),
    ("https://shop.example/?outbox_bearer=hunter2%0A", "a token of ASCII"),
    ("https://user:hunter2@shop.example/?outbox_bearer=token", "one of a user, outbox_bearer and"),
    ("https://user:hun#ter2@shop.example/", ""),
    ("kafka://", "name brokers"),
    ("kafka://h/a/b", "topic's name"),
    ("kafka://h/t?librdkafka.acks=0", "can't be changed"),
    ("kafka://h/t?librdkafka.no.such=1", "No such configuration property"),
    ("kafka://h/t?librdkafka.compression.type=hunter2", "Invalid value for configuration property"),
    ("kafka://u:hunter2@h/t?tls=true&ca=/no/such/file", "ssl.ca.location"),
    (f"{QUEUES}/?quue=orders", "unknown option"),
    (f"{QUEUES}/?queue=q&routing_key=k", "needs an exchange"),
    *[(f"{QUEUES}/?exchange=e&{more}", "names an exchange") for more in ("queue=q", "declare=true")],
    ("azurestoragequeues://no-account?queue=hunter2", ""),
    ("redis://:hunter2@h/orders", "/db/queue"),
    ("redis://:hunter2@h/0/orders?fanout=f", "either a queue or fanout"),
    ("rediss://h/1/", "must name a queue, as"),
    ("mqtt:///orders", "must name a host"),
    ("mqtt://u:hunter2@h/a/#", "not a topic"),
    ("mqtt://u:hunter2@h/a?qos=2", "unknown option. mqtt:// URLs have retain"),
    ("nats:///orders", "must name a host"),
    *[(f"nats://u:hunter2@h/{path}", "not a subject") for path in ("a.>", "a b", "a#b")],
    ("pubsub:///orders", "pubsub://project/topic"),
    ("pubsub://user:hunter2@shop/orders", "?credentials="),
    *[(f"pubsub://shop/{topic}", "a topic's name") for topic in ("a/b", "google-orders")],
    ("pubsub://shop/orders?endpoint=https://x/hunter2", "endpoint must be"),
    ("pubsub://shop/orders?emulator=localhost", "emulator must be"),
    ("pubsub://shop/orders?emulator=localhost:8085&credentials=/hunter2", "neither endpoint nor"),
    ('pubsub://shop/orders?credentials={"private_key":"hunter2"}', "the path of"),
    ("azureservicebus:///orders", "NAMESPACE"),
    (f"{SERVICE_BUS}@shop.example/orders#hunter2", "NAMESPACE"),
    (f"{SERVICE_BUS}@shop.example/no%20name", "not the name"),
    ("azureservicebus://hunter2@shop.example/orders", "go together"),
    (f"{SERVICE_BUS};EntityPath=x@shop.example/orders", "no semicolons"),
    ("azureservicebus://localhost/orders?development_emulator=true", "RootManageSharedAccessKey"),
    (f"{SERVICE_BUS}/x@shop.example/orders", "percent-encoded"),
    *[
        (f"sqs://{rest}", "region/")
        for rest in (
            "eu-west-1", "/123456789012/orders", "eu-west-1/orders", "eu-west-1/12/orders",
            "eu-west-1/123456789012/my orders", "AKIA@eu-west-1/123456789012/orders",
            "AKIA:hunter2@eu-west-1:1/123456789012/orders", "AKIA:hunter2/er2@eu-west-1/123456789012/orders",
        )
    ],
    ("sqs://eu-west-1/123456789012/orders?endpoint=http://me:hunter2@localhost", "endpoint must be"),
]  # fmt: skip


@pytest.mark.parametrize(("url", "rule"), REFUSED)
def test_one_that_can_not_work_is_refused_without_its_secrets(url: str, rule: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load(*configured(url))
    assert caught.value.setting == "destinations.orders.url"
    assert rule in caught.value.rule
    shown = "".join(traceback.format_exception_only(caught.value))
    assert not any(secret in shown for secret in ("hunter2", "hun#", "ter2", "AKIA"))


@pytest.mark.parametrize(
    ("url", "attribute", "value"),
    [
        ("redis+stream://localhost:1", "stream", "orders"),
        ("redis+stream://localhost:1/3/a/b", "stream", "a/b"),
        ("kafka://u:p@h,[::1]:9,i:1/a.b_c-d", "topic", "a.b_c-d"),
        ("mqtt://localhost", "topic", "orders"),
        ("mqtt://localhost//x", "topic", "/x"),
        ("nats://localhost/shop.events", "subject", "shop.events"),
        ("amqp://h/", "_sender.get()._key", "orders"),
        ("grpc://[::1]:50051", "_target", "[::1]:50051"),
        ("https://shop.example/?outbox_concurrency=100", "_options.concurrency", 100),
        ("pubsub://shop", "_address.topic", "projects/shop/topics/orders"),
        ("pubsub://example.com:shop/a%25b", "_address.topic", "projects/example.com:shop/topics/a%b"),
        ("pubsub://shop/abc?endpoint=[::1]:8443", "_address.endpoint", "[::1]:8443"),
        ("azureservicebus://p:ab%2Fc%2B=@h/shop.a_2~x", "_address.entity", "shop.a_2~x"),
        ("azureservicebus://p:ab%2Fc%2B=@h/shop/orders", "_address.key", "ab/c+="),
        ("azureservicebus://p:k@[::1]:5672/a?development_emulator=true", "_address.place", "[::1]:5672"),
    ],
)
def test_what_one_says(url: str, attribute: str, value: object) -> None:
    publisher: Any = load(*configured(url))
    for name in attribute.split("."):
        publisher = getattr(publisher, name.removesuffix("()"))
        publisher = publisher() if name.endswith("()") else publisher
    assert publisher == value


@pytest.mark.parametrize(
    "url", ["azureservicebus://p:s3cret@h/orders", "sqs://AKIA:s3cret@eu-west-1/123456789012/orders"]
)
def test_what_is_read_from_it_has_its_secrets_in_no_representation(url: str) -> None:
    publisher: Any = load(*configured(url))
    assert "s3cret" not in repr(publisher._address)
