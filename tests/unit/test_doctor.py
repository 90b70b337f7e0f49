"""What the doctor makes of a URL and of a server's words; and that its page says all that it may say."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from outbox_tasks.operating.problems import CODES, broker
from outbox_tasks.operating.problems.addresses import Address, addresses
from outbox_tasks.settings.destination import Destination

PAGE = Path(__file__).parents[2] / "docs" / "doctor.md"


@pytest.mark.parametrize("code", sorted(CODES))
def test_every_finding_is_on_its_page(code: str) -> None:
    assert f"| `{code}` |" in PAGE.read_text(encoding="utf-8")


def test_every_finding_on_the_page_exists() -> None:
    assert set(re.findall(r"^\| `(\w+)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)) == CODES


@pytest.mark.parametrize("version", ["6.0.16", "5.0.7"])
def test_a_redis_that_is_too_old(version: str) -> None:
    """None of these is to be had any more: what it would say is looked at."""
    assert [finding.code for finding in broker.old({"redis_version": version})] == ["redis_old"]


@pytest.mark.parametrize("said", [{"redis_version": "6.2.0"}, {"redis_version": "7.2.4", "valkey_version": "8.0.1"}])
def test_a_redis_that_is_new_enough(said: dict[str, Any]) -> None:
    assert list(broker.old(said)) == []


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis+stream://:secret@host/1/orders", [Address("host", 6379)]),
        ("rediss://host:7000/0/q?ssl_cert_reqs=none", [Address("host", 7000, tls=True, verified=False)]),
        ("celery://?broker=valkeys://h/0", [Address("h", 6379, tls=True)]),
        ("amqps://user:p%40ss@[::1]/vhost?queue=q", [Address("::1", 5671, tls=True)]),
        ("kafka://u:p@a:1,b/topic?tls=true&ca=/ca.pem",
         [Address("a", 1, True, "/ca.pem"), Address("b", 9092, True, "/ca.pem")]),
        ("https://partner.example.org/events?a=b", [Address("partner.example.org", 443, tls=True, public=True)]),
        ("http://localhost/x", [Address("localhost", 80, public=True)]),
        ("http://localhost/x?outbox_private=allow", [Address("localhost", 80)]),
        ("nats://t@a,b:4223/s?tls=true", [Address("a", 4222), Address("b", 4223)]),
        ("mqtts://broker/x", [Address("broker", 8883, tls=True)]),
        ("sqs://key:se%2Fcret@eu-west-1/queue", [Address("sqs.eu-west-1.amazonaws.com", 443, tls=True)]),
        ("sns://cn-north-1/1/t", [Address("sns.cn-north-1.amazonaws.com.cn", 443, tls=True)]),
        ("sqs://eu-west-1/queue?endpoint=http://localhost:4566", [Address("localhost", 4566)]),
        ("pubsub://example.com:shop/orders", [Address("pubsub.googleapis.com", 443, tls=True)]),
        (
            "pubsub://shop/orders?endpoint=eu-pubsub.googleapis.com:8443",
            [Address("eu-pubsub.googleapis.com", 8443, tls=True)],
        ),
        ("pubsub://shop/orders?emulator=localhost:8085", [Address("localhost", 8085)]),
        (
            "azureservicebus://send:se%2Fcret@shop.servicebus.windows.net/orders",
            [Address("shop.servicebus.windows.net", 5671, tls=True)],
        ),
        (
            "azureservicebus://send:se%2Fcret@localhost/orders?development_emulator=true",
            [Address("localhost", 5672)],
        ),
        ("azurestoragequeues://k/e+y==@https://acc.queue.core.windows.net?queue=q",
         [Address("acc.queue.core.windows.net", 443, tls=True)]),
        ("celery://?broker=redis://shop:6380/2", [Address("shop", 6380)]),
        ("celery://", [Address("a", 5672), Address("b", 5672)]),
        ("own://", []),
        ("own://somewhere", []),
        ("own://somewhere:99/x", [Address("somewhere", 99)]),
    ],
)  # fmt: skip
def test_where_a_url_leads(url: str, expected: list[Address]) -> None:
    assert addresses(Destination(url=url), "amqp://a//;amqp://b//") == expected
