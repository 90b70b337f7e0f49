"""A server that speaks Pub/Sub's protocol, with Google's own messages, and has Google's limits and words for them.

    python -m tests.contract.servers.pubsub_server PORT [CERTIFICATE KEY EMAIL PUBLIC_KEY]

It has what the tests need: topics, subscriptions, Publish, Pull, Acknowledge. With a certificate it speaks TLS, takes
only tokens that the service account EMAIL has signed itself, and has a topic from the beginning. Nobody may publish to
topics named `forbidden…`. An event type `abort.<STATUS>` ends its request with that status, `miscounted` is answered
without an id, `slow` takes its time. It keeps count of the requests to each topic (`/tests.Box/Calls`), and forgets
everything when it ends.
"""

from __future__ import annotations

import json
import re
import signal
import sys
import threading
import time
from collections import defaultdict
from concurrent import futures
from itertools import count
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import parse_qs

import grpc
from google.auth import jwt
from google.protobuf.empty_pb2 import Empty
from google.pubsub_v1 import types
from grpc import StatusCode

MESSAGES, REQUEST, PAYLOAD = 1000, 10_000_000, 10_485_760
ATTRIBUTES, NAME, VALUE, ORDERING_KEY = 100, 256, 1024, 1024
SLOW = 2.0
SCOPE = "https://www.googleapis.com/auth/pubsub"
TOPIC = re.compile(r"projects/[a-z][a-z0-9.:-]*/topics/(?!goog)[A-Za-z][A-Za-z0-9._~+%-]{2,254}")
FIRST = "projects/shop-project/topics/orders"
QUOTAS = "Refer to https://cloud.google.com/pubsub/quotas for more information."


class Refused(Exception):
    """A request that is answered with a status."""

    def __init__(self, code: StatusCode, details: str) -> None:
        super().__init__(details)
        self.code, self.details = code, details


def invalid(details: str) -> NoReturn:
    raise Refused(StatusCode.INVALID_ARGUMENT, details)


def too_long(what: str, length: int, most: int) -> NoReturn:
    invalid(
        f"One of the attributes in the request has a {what} that is too long. The length is {length} characters, but "
        f"the maximum allowed is {most}. {QUOTAS}"
    )


class PubSub:
    def __init__(self, email: str | None, key: bytes | None) -> None:
        self.email, self.key = email, key
        self.topics: dict[str, Any] = {}
        self.subscriptions: dict[str, Any] = {}
        self.backlogs: dict[str, dict[str, Any]] = defaultdict(dict)
        self.calls: dict[str, list[dict[str, Any]]] = defaultdict(list)
        self.ids = count(1)
        self.lock = threading.Lock()

    # google.pubsub.v1.Publisher

    def create_topic(self, topic: Any) -> Any:
        if not TOPIC.fullmatch(topic.name):
            invalid(f"Invalid resource name given (name={topic.name}).")
        if topic.name in self.topics:
            raise Refused(StatusCode.ALREADY_EXISTS, f"Resource already exists in the project (resource={topic.name}).")
        self.topics[topic.name] = topic
        return topic

    def get_topic(self, request: Any) -> Any:
        return self._topic(request.topic)

    def publish(self, request: Any) -> Any:
        self._topic(request.topic)
        self._check(request)
        response = types.PublishResponse.pb()()
        for message in request.messages:
            message.message_id = str(next(self.ids))
            message.publish_time.GetCurrentTime()
            for name, subscription in self.subscriptions.items():
                if subscription.topic == request.topic:
                    self.backlogs[name][message.message_id] = message
            if message.attributes.get("ce-type") != "miscounted":
                response.message_ids.append(message.message_id)
        return response

    def _topic(self, name: str) -> Any:
        if not TOPIC.fullmatch(name):
            invalid(f"Invalid resource name given (name={name}).")
        short = name.rpartition("/")[2]
        if short.startswith("forbidden"):
            raise Refused(StatusCode.PERMISSION_DENIED, "User not authorized to perform this action.")
        if name not in self.topics:
            raise Refused(StatusCode.NOT_FOUND, f"Resource not found (resource={short}).")
        return self.topics[name]

    def _check(self, request: Any) -> None:
        size = request.ByteSize()
        for what, value, most in (
            ("message_count", len(request.messages), MESSAGES),
            ("request_size", size, REQUEST),
        ):
            if value > most:
                invalid(
                    f"The value for {what} is too large. You passed {value} in the request, but the maximum value is "
                    f"{most}."
                )
        if not request.messages:
            invalid("The request contains no messages.")
        keys = {message.ordering_key for message in request.messages}
        if len(keys) > 1:
            raise Refused(
                StatusCode.FAILED_PRECONDITION,
                "In a single publish request, all messages must have no ordering key or they must all have the same "
                "ordering key.",
            )
        if len(keys.pop().encode()) > ORDERING_KEY:
            too_long("ordering key", len(request.messages[0].ordering_key), ORDERING_KEY)
        for message in request.messages:
            self._check_message(message)

    @staticmethod
    def _check_message(message: Any) -> None:
        if not message.data and not message.attributes:
            invalid("One or more messages in the publish request is empty. Each message must contain either "
                    "non-empty data, or at least one attribute.")  # fmt: skip
        if len(message.attributes) > ATTRIBUTES:
            invalid(f"The value for attributes_count is too large. You passed {len(message.attributes)} in the "
                    f"request, but the maximum value is {ATTRIBUTES}.")  # fmt: skip
        for name, value in message.attributes.items():
            if not 0 < len(name.encode()) <= NAME:
                too_long("key", len(name.encode()), NAME)
            if len(value.encode()) > VALUE:
                too_long("value", len(value.encode()), VALUE)
            if name.lower().startswith("goog"):
                invalid(f"The attribute key {name} is reserved.")
        kind, _, status = message.attributes.get("ce-type", "").partition(".")
        if kind == "abort":
            raise Refused(StatusCode[status], f"{status} for all")

    # google.pubsub.v1.Subscriber

    def create_subscription(self, subscription: Any) -> Any:
        self._topic(subscription.topic)
        self.subscriptions[subscription.name] = subscription
        return subscription

    def pull(self, request: Any) -> Any:
        """What is not acknowledged, in the order of its arrival."""
        response = types.PullResponse.pb()()
        for message in list(self.backlogs[request.subscription].values())[: request.max_messages]:
            response.received_messages.add(ack_id=message.message_id, message=message)
        return response

    def acknowledge(self, request: Any) -> Any:
        for ack_id in request.ack_ids:
            self.backlogs[request.subscription].pop(ack_id, None)
        return Empty()

    def count(self, request: Any, context: grpc.ServicerContext) -> None:
        """Remember a Publish for those who ask, refused or not."""
        given = dict(context.invocation_metadata()).get("x-goog-request-params", "")
        self.calls[request.topic].append({
            "messages": len(request.messages),
            "key": request.messages[0].ordering_key if request.messages else "",
            "routed": parse_qs(given).get("topic", [""])[0],
        })  # fmt: skip

    def authorize(self, context: grpc.ServicerContext) -> None:
        if self.key is None:
            return
        token = dict(context.invocation_metadata()).get("authorization", "").removeprefix("Bearer ")
        try:
            claims = jwt.decode(token, certs=self.key)
        except ValueError:
            claims = {}
        if claims.get("iss") != self.email or SCOPE not in claims.get("scope", ""):
            raise Refused(
                StatusCode.UNAUTHENTICATED,
                "Request had invalid authentication credentials. Expected OAuth 2 access token, login cookie or other "
                "valid authentication credential.",
            )

    def method(self, act: Any, takes: Any, gives: Any) -> Any:
        """The method as gRPC has it."""

        def answer(body: bytes, context: grpc.ServicerContext) -> Any:
            try:
                if len(body) > PAYLOAD:
                    invalid(f"Request payload size exceeds the limit: {PAYLOAD} bytes.")
                request = takes.FromString(body)
                if act == self.publish and any(one.attributes.get("ce-type") == "slow" for one in request.messages):
                    time.sleep(SLOW)
                with self.lock:
                    if act == self.publish:
                        self.count(request, context)
                    self.authorize(context)
                    return act(request)
            except Refused as error:
                context.abort(error.code, error.details)

        return grpc.unary_unary_rpc_method_handler(answer, None, gives.SerializeToString)

    def services(self) -> tuple[grpc.GenericRpcHandler, ...]:
        topic, subscription = types.Topic.pb(), types.Subscription.pb()
        publisher = {
            "CreateTopic": self.method(self.create_topic, topic, topic),
            "GetTopic": self.method(self.get_topic, types.GetTopicRequest.pb(), topic),
            "Publish": self.method(self.publish, types.PublishRequest.pb(), types.PublishResponse.pb()),
        }
        subscriber = {
            "CreateSubscription": self.method(self.create_subscription, subscription, subscription),
            "Pull": self.method(self.pull, types.PullRequest.pb(), types.PullResponse.pb()),
            "Acknowledge": self.method(self.acknowledge, types.AcknowledgeRequest.pb(), Empty),
        }
        box = {
            "Calls": grpc.unary_unary_rpc_method_handler(
                lambda topic, _: json.dumps(self.calls[topic.decode()]).encode()
            )
        }
        return (
            grpc.method_handlers_generic_handler("google.pubsub.v1.Publisher", publisher),
            grpc.method_handlers_generic_handler("google.pubsub.v1.Subscriber", subscriber),
            grpc.method_handlers_generic_handler("tests.Box", box),
        )


def main(port: str, *files: str) -> None:
    certificate, key, email, public_key = files or (None,) * 4
    pubsub = PubSub(email, Path(public_key).read_bytes() if public_key else None)
    options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1), ("grpc.so_reuseport", 0)]
    server = grpc.server(futures.ThreadPoolExecutor(8), options=options)
    server.add_generic_rpc_handlers(pubsub.services())
    if certificate and key:
        pubsub.create_topic(types.Topic.pb()(name=FIRST))
        pair = Path(key).read_bytes(), Path(certificate).read_bytes()
        server.add_secure_port(f"127.0.0.1:{port}", grpc.ssl_server_credentials([pair]))
    else:
        server.add_insecure_port(f"127.0.0.1:{port}")
    signal.signal(signal.SIGTERM, lambda *_: server.stop(grace=1))
    server.start()
    print("ready", flush=True)
    server.wait_for_termination()


if __name__ == "__main__":
    main(*sys.argv[1:])
