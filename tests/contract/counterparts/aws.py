"""Amazon SQS and SNS as moto answers for them: a server of our own, on this machine.

No test may reach the real ones. Whatever talks to it is given its address and credentials that mean nothing elsewhere,
and for as long as there are tests of it, the environment says nothing of AWS (see `conftest.py`).
"""

from __future__ import annotations

import base64
import importlib.util
import json
import os
import sys
from abc import abstractmethod
from contextlib import suppress
from typing import Any, ClassVar
from urllib.request import Request, urlopen

import boto3
import pytest
from botocore.config import Config

from outbox_tasks.local.ports import LOOPBACK
from outbox_tasks.local.processes import Child
from tests.contract.counterparts import Received
from tests.contract.own_server import ChildCounterpart

REGION, ACCOUNT = "eu-west-1", "123456789012"
NOWHERE = {
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
}
OWN = ("content_type", "body_encoding", "headers")
"""Message attributes that are none of CloudEvents."""


SERVER = """
from moto.server import main
from moto.sqs.models import Queue

# For each message that it takes or hands out, moto counts all that it has, with a look at the clock for each of them:
# a thousand messages take half a minute. Nothing here asks for the counts.
for count in ("messages", "messages_delayed", "messages_not_visible"):
    setattr(Queue, f"approximate_number_of_{count}", 0)
main()
"""


def without_aws(patch: pytest.MonkeyPatch) -> None:
    """Nobody's credentials, configuration or proxy."""
    for name in list(os.environ):
        if name.startswith("AWS_") or name.lower().endswith("_proxy"):
            patch.delenv(name)
    for name, value in NOWHERE.items():
        patch.setenv(name, value)


class MotoCounterpart(ChildCounterpart):
    """A place of the test's own on a moto server, which forgets everything when it ends."""

    service: ClassVar[str]
    suffix: ClassVar[str] = ""

    def __init__(self) -> None:
        super().__init__()
        self._arrived: dict[str, list[dict[str, Any]]] = {}
        self._clients: dict[str, Any] = {}

    @classmethod
    def missing(cls) -> str | None:
        is_here = all(importlib.util.find_spec(name) for name in ("moto", "flask_cors"))
        return None if is_here else "moto's server is not installed: pip install 'moto[server]'"

    @property
    def address(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"

    def launch(self) -> Child:
        argv = [sys.executable, "-c", SERVER, "-H", LOOPBACK, "-p", str(self.port)]
        return Child.start("moto", argv, log=self.directory / "moto.log", cwd=self.directory)

    def answers(self) -> bool:
        with suppress(OSError), urlopen(f"{self.address}/moto-api/data.json", timeout=5) as answer:
            return bool(answer.status == 200)
        return False

    def stop(self) -> None:
        super().stop()
        while self._clients:
            self._clients.popitem()[1].close()

    def client(self, service: str) -> Any:
        """A client of the tests' own."""
        if service not in self._clients:
            session = boto3.session.Session(aws_access_key_id="test", aws_secret_access_key="test", region_name=REGION)
            config = Config(retries={"total_max_attempts": 1})
            self._clients[service] = session.client(service, endpoint_url=self.address, config=config)
        return self._clients[service]

    @abstractmethod
    def make(self, place: str) -> None:
        """Make the place."""

    def url(self, place: str) -> str:
        self._require_credentials(False)
        self.make(place)
        return super().url(place)

    def unroutable_url(self, place: str) -> str:
        return self.url_on(self.port, f"no-{place}")

    def wrong_password_url(self, place: str) -> str:
        self._require_credentials(True)
        return self.url_on(self.port, place).replace("test:test@", "test:wrong@")

    def queue(self, place: str) -> str:
        """The name of the queue that holds what arrived."""
        return f"{place}{self.suffix}"

    def raw(self) -> list[dict[str, Any]]:
        """What has arrived at the test's place, as SQS hands it out."""
        arrived = self._arrived.setdefault(self.place, [])
        sqs = self.client("sqs")
        where = sqs.get_queue_url(QueueName=self.queue(self.place))["QueueUrl"]
        names: dict[str, Any] = {"MessageAttributeNames": ["All"], "MessageSystemAttributeNames": ["All"]}
        while messages := sqs.receive_message(QueueUrl=where, MaxNumberOfMessages=10, **names).get("Messages"):
            arrived += messages
            taken = [{"Id": str(n), "ReceiptHandle": each["ReceiptHandle"]} for n, each in enumerate(messages)]
            sqs.delete_message_batch(QueueUrl=where, Entries=taken)
        return arrived

    @staticmethod
    def read(arrived: Any) -> Received:
        attributes = values(arrived)
        decode = {"base64": base64.b64decode, "empty": lambda _: b"", None: str.encode}[attributes.get("body_encoding")]
        return Received(
            {name.removeprefix("ce_"): value for name, value in attributes.items() if name not in OWN},
            decode(arrived["Body"]),
            json.loads(attributes.get("headers", "{}")),
            attributes.get("content_type"),
        )

    def url_on(self, port: int, place: str) -> str:
        where = f"{REGION}/{ACCOUNT}/{place}{self.suffix}"
        return f"{self.service}://test:test@{where}?endpoint=http://{LOOPBACK}:{port}"

    def _require_credentials(self, required: bool) -> None:
        """moto takes any credentials until it has had so many requests."""
        body, kind = b"0" if required else b"inf", {"Content-Type": "text/plain"}
        with urlopen(Request(f"{self.address}/moto-api/reset-auth", data=body, headers=kind), timeout=5):
            pass


def values(message: dict[str, Any]) -> dict[str, str]:
    """The message attributes; all are texts."""
    attributes = message.get("MessageAttributes", {})
    assert {each["DataType"] for each in attributes.values()} <= {"String"}
    return {name: each["StringValue"] for name, each in attributes.items()}


class Sqs(MotoCounterpart):
    """A standard queue."""

    name: ClassVar[str] = "sqs"
    service: ClassVar[str] = "sqs"
    largest: ClassVar[int | None] = 1_048_576
    attributes: ClassVar[dict[str, str]] = {}

    def make(self, place: str) -> None:
        self.client("sqs").create_queue(QueueName=self.queue(place), Attributes=self.attributes)


class SqsFifo(Sqs):
    """A queue that keeps order: what holds for it holds for a standard one."""

    name: ClassVar[str] = "sqs-fifo"
    suffix: ClassVar[str] = ".fifo"
    attributes: ClassVar[dict[str, str]] = {"FifoQueue": "true"}


class Sns(Sqs):
    """A standard topic, with a queue that subscribes to it."""

    name: ClassVar[str] = "sns"
    service: ClassVar[str] = "sns"
    topic: ClassVar[dict[str, str]] = {}
    keeps_order: ClassVar[bool] = False
    largest: ClassVar[int | None] = 262_144

    def make(self, place: str) -> None:
        super().make(place)
        topic = self.client("sns").create_topic(Name=place + self.suffix, Attributes=self.topic)["TopicArn"]
        queue = f"arn:aws:sqs:{REGION}:{ACCOUNT}:{self.queue(place)}"
        raw = {"RawMessageDelivery": "true"}
        self.client("sns").subscribe(TopicArn=topic, Protocol="sqs", Endpoint=queue, Attributes=raw)


class SnsFifo(Sns):
    suffix: ClassVar[str] = ".fifo"
    attributes: ClassVar[dict[str, str]] = {"FifoQueue": "true"}
    topic: ClassVar[dict[str, str]] = {"FifoTopic": "true"}


KINDS = (SqsFifo, Sns)
"""Those that test_every_publisher.py tries."""
