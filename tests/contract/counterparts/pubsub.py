"""Google Cloud Pub/Sub, with ordering keys: the program `servers/pubsub_server.py`, asked by Google's own clients."""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import grpc
from google.api_core.exceptions import AlreadyExists
from google.pubsub_v1 import PublisherClient, SubscriberClient
from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport
from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcTransport

from outbox_tasks.local.ports import LOOPBACK, free_port
from outbox_tasks.local.processes import Child
from outbox_tasks.model import LeasedMessage
from tests.contract.counterparts import Received
from tests.contract.own_server import ChildCounterpart
from tests.contract.servers import pubsub_server

ROOT = Path(__file__).parents[3]
PROJECT = "shop-project"
PATIENCE = 10


class PubSubCounterpart(ChildCounterpart):
    """A place is a topic, with a subscription from its beginning."""

    largest: ClassVar[int | None] = pubsub_server.REQUEST
    options: ClassVar[str] = ""

    def __init__(self, *files: str) -> None:
        super().__init__()
        self.port = free_port()
        self._files = files
        self._arrived: dict[str, list[Any]] = defaultdict(list)

    def launch(self) -> Child:
        return Child.start(
            "Pub/Sub", [sys.executable, "-m", pubsub_server.__name__, str(self.port), *self._files], cwd=ROOT
        )

    def answers(self) -> bool:
        return self.child is not None and "ready" in self.child.tail()

    def url(self, place: str) -> str:
        with self.channel() as channel, suppress(AlreadyExists):
            publisher(channel).create_topic(name=topic(place), timeout=PATIENCE)
            subscriber(channel).create_subscription(
                {"name": subscription(place), "topic": topic(place), "enable_message_ordering": True}, timeout=PATIENCE
            )
        return self.url_on(self.port, place)

    def url_at(self, port: int) -> str:
        return self.url_on(port, self.place)

    def url_on(self, port: int, place: str) -> str:
        return f"pubsub://{PROJECT}/{place}?emulator={LOOPBACK}:{port}{self.options}"

    def unroutable_url(self, place: str) -> str:
        return self.url_on(self.port, f"nobody-{place}")

    def refused(self, message: LeasedMessage) -> LeasedMessage:
        return replace(message, event_type="abort.INVALID_ARGUMENT")

    def received(self) -> list[Received]:
        return [_received(message) for message in self.raw()]

    def raw(self) -> list[Any]:
        """The messages at the test's place, as the client gives them."""
        found, source = self._arrived[self.place], subscription(self.place)
        with self.channel() as channel:
            client = subscriber(channel)
            while arrived := client.pull(subscription=source, max_messages=1000, timeout=PATIENCE).received_messages:
                found += [one.message for one in arrived]
                client.acknowledge(subscription=source, ack_ids=[one.ack_id for one in arrived], timeout=PATIENCE)
        return found

    def calls(self) -> list[dict[str, Any]]:
        """What requests the server got for the test's place."""
        with self.channel() as channel:
            found: list[dict[str, Any]] = json.loads(
                channel.unary_unary("/tests.Box/Calls")(topic(self.place).encode(), PATIENCE)
            )
        return found

    def sizes(self) -> list[int]:
        """How many messages came with each of them."""
        return [call["messages"] for call in self.calls()]

    @contextmanager
    def channel(self) -> Iterator[grpc.Channel]:
        options = [("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
        with grpc.insecure_channel(f"{LOOPBACK}:{self.port}", options) as channel:
            yield channel


class Counterpart(PubSubCounterpart):
    name: ClassVar[str] = "pubsub"


def topic(place: str) -> str:
    return f"projects/{PROJECT}/topics/{place}"


def subscription(place: str) -> str:
    return f"projects/{PROJECT}/subscriptions/{place}"


def publisher(channel: grpc.Channel) -> Any:
    return PublisherClient(transport=PublisherGrpcTransport(channel=channel))


def subscriber(channel: grpc.Channel) -> Any:
    return SubscriberClient(transport=SubscriberGrpcTransport(channel=channel))


def _received(message: Any) -> Received:
    attributes = dict(message.attributes)
    assert attributes.pop("ce-specversion") == "1.0"
    content_type = attributes.pop("ce-datacontenttype")
    assert attributes.pop("content-type") == content_type
    return Received(
        {n.removeprefix("ce-"): v for n, v in attributes.items() if n.startswith("ce-")},
        message.data,
        {n: v for n, v in attributes.items() if not n.startswith("ce-")},
        content_type,
    )
