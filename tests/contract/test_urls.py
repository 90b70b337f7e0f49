"""What the URLs of destinations may say. One that can't work is refused by its setting, and nothing of it is shown."""

from __future__ import annotations

import traceback
from typing import Any

import pytest

from outbox_tasks.destinations import load
from outbox_tasks.errors import ConfigurationError
from tests.contract.messages import configured

SERVICE_BUS = "azureservicebus://p:hunter2"
QUEUES = "amqp://u:hunter2@h"

REFUSED = [
    ("redis+stream://localhost/0/s?maxlen=many", "maxlen must be a number from 1"),
    ("redis+stream://localhost/0/s?minlen=5", "unknown option. The options of redis+stream:// URLs are maxlen"),
    ("redis+stream://localhost/stream/more", "/db/stream"),
    ("redis+stream://:hunter2@localhost:port/0/s", "not a URL"),
    ("redis+stream://user:hunter2/x@localhost/0/s", ""),
    ("celery://host/path", "with options only"),
    ("celery://?accept=jsno&broker=redis://localhost/0", "accept names serializers"),
    ("celery://?broker=", "broker must be a text that is not empty"),
    ("celery://?queue=shop", "set broker_url"),
    ("celery://?broker=nowhere://localhost", "its broker can't be used"),
    ("grpc://shop.example", "host:port"),
    ("grpc://user:hunter2@shop.example:50051", "?token="),
    ("grpc://shop.example:50051?token=hunter2%0aevil", "its option token must be"),
    ("grpc://shop.example:50051?ca_file=/etc/ca.pem", "grpcs://"),
    ("grpcs://shop.example:50051?cert_file=/etc/cert.pem", "go together"),
    ("https:///hooks", "must have a host"),
    ("https://shop.example/#part", "no fragment"),
    ("https://shop.example/?outbox_secret=hunter2!", "outbox_secret must be base64"),
    ("https://shop.example/?outbox_bearer=hunter2%0A", "a token of ASCII"),
    ("https://user:hunter2@shop.example/?outbox_bearer=token", "either a user or outbox_bearer"),
    ("https://user:hun#ter2@shop.example/", ""),
    ("kafka://", "name brokers"),
    ("kafka://h/a/b", "topic's name"),
    ("kafka://h/t?librdkafka.acks=0", "can't be changed"),
    ("kafka://h/t?librdkafka.no.such=1", "No such configuration property"),
    ("kafka://h/t?compression=hunter2", "Invalid value for configuration property"),
    ("kafka://u:hunter2@h/t?tls=true&ca=/no/such/file", "ssl.ca.location"),
    (f"{QUEUES}/?quue=orders", "unknown option"),
    (f"{QUEUES}/?queue=q&routing_key=k", "need an exchange"),
    (f"{QUEUES}/?exchange=e&exchange_type=topic", "needs declare=true"),
    ("azurestoragequeues://no-account?queue=hunter2", ""),
    ("redis://:hunter2@h/orders", "/db/queue"),
    ("redis://:hunter2@h/0/orders?fanout=f", "either a queue or fanout"),
    ("rediss://h/1/", "must name a queue, as"),
    ("mqtt:///orders", "must name a host"),
    ("mqtt://u:hunter2@h/a/#", "not a topic"),
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
            "eu-west-1", "/orders", "eu-west-1/12/orders", "eu-west-1/my orders", "AKIA@eu-west-1/orders",
            "AKIA:hunter2@eu-west-1:x/orders", "AKIA:hunter2/er2@eu-west-1/orders",
        )
    ],
    ("sqs://eu-west-1/orders?endpoint=http://me:hunter2@localhost", "endpoint must be"),
    ("sns://eu-west-1/orders", "region/"),
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


@pytest.mark.parametrize("url", ["azureservicebus://p:s3cret@h/orders", "sqs://AKIA:s3cret@eu-west-1/orders"])
def test_what_is_read_from_it_has_its_secrets_in_no_representation(url: str) -> None:
    publisher: Any = load(*configured(url))
    assert "s3cret" not in repr(publisher._address)
