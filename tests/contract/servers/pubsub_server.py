"""A server that takes Pub/Sub's Publish, with Google's own messages, and has Google's limits and words for them.

    python -m tests.contract.servers.pubsub_server PORT [CERTIFICATE EMAIL PUBLIC_KEY]

With a certificate it speaks TLS, and takes only tokens that the service account EMAIL has signed itself. Every topic is
there, but for names that begin with `nobody`. An event type `abort.<STATUS>` ends its request with that status,
`miscounted` is answered without an id, `slow` takes its time. What came with each request to a topic, refused or not,
is told at `/tests.Box/Calls`.
"""

from __future__ import annotations

import base64
import json
import sys
import threading
import time
from collections import defaultdict
from itertools import count
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import parse_qs

import grpc
from google.auth import jwt
from google.pubsub_v1 import types
from grpc import StatusCode

from tests.contract.servers.grpc_server import serve

REQUEST, ATTRIBUTES, NAME, VALUE = 10_000_000, 100, 256, 1024
SLOW = 1.0
SCOPE = "https://www.googleapis.com/auth/pubsub"


class Refused(Exception):
    """A request that is answered with a status."""

    def __init__(self, code: StatusCode, details: str) -> None:
        super().__init__(details)
        self.code, self.details = code, details


def invalid(details: str) -> NoReturn:
    raise Refused(StatusCode.INVALID_ARGUMENT, details)


class PubSub:
    def __init__(self, email: str | None, key: bytes | None) -> None:
        self.email, self.key = email, key
        self.calls: dict[str, list[dict[str, Any]]] = defaultdict(list)
        self.ids = count(1)
        self.lock = threading.Lock()

    def publish(self, body: bytes, context: grpc.ServicerContext) -> Any:
        request = types.PublishRequest.pb().FromString(body)
        if any(message.attributes.get("ce-type") == "slow" for message in request.messages):
            time.sleep(SLOW)
        routed = dict(context.invocation_metadata()).get("x-goog-request-params", "")
        call = {
            "messages": len(request.messages),
            "key": request.messages[0].ordering_key if request.messages else "",
            "routed": parse_qs(routed).get("topic", [""])[0],
            "taken": [],
        }
        response = types.PublishResponse.pb()()
        with self.lock:
            self.calls[request.topic].append(call)
            try:
                self.authorize(context)
                self.check(request)
            except Refused as error:
                context.abort(error.code, error.details)
            for message in request.messages:
                call["taken"].append(base64.b64encode(message.SerializeToString()).decode())
                if message.attributes.get("ce-type") != "miscounted":
                    response.message_ids.append(str(next(self.ids)))
        return response

    def authorize(self, context: grpc.ServicerContext) -> None:
        if self.key is None:
            return
        token = dict(context.invocation_metadata()).get("authorization", "").removeprefix("Bearer ")
        try:
            claims = jwt.decode(token, certs=self.key)
        except ValueError:
            claims = {}
        if claims.get("iss") != self.email or SCOPE not in claims.get("scope", ""):
            raise Refused(StatusCode.UNAUTHENTICATED, "Request had invalid authentication credentials.")

    @staticmethod
    def check(request: Any) -> None:
        if (name := request.topic.rpartition("/")[2]).startswith("nobody"):
            raise Refused(StatusCode.NOT_FOUND, f"Resource not found (resource={name}).")
        if (size := request.ByteSize()) > REQUEST:
            invalid(f"The value for request_size is too large. You passed {size}, but the maximum value is {REQUEST}.")
        if len({message.ordering_key for message in request.messages}) > 1:
            raise Refused(StatusCode.FAILED_PRECONDITION, "All messages must have the same ordering key.")
        for message in request.messages:
            if not message.data and not message.attributes:
                invalid("One or more messages in the publish request is empty.")
            if len(message.attributes) > ATTRIBUTES:
                invalid("The value for attributes_count is too large.")
            for name, value in message.attributes.items():
                if not 0 < len(name.encode()) <= NAME or len(value.encode()) > VALUE:
                    invalid("One of the attributes in the request has a key or value that is too long.")
                if name.lower().startswith("goog"):
                    invalid(f"The attribute key {name} is reserved.")
            kind, _, status = message.attributes.get("ce-type", "").partition(".")
            if kind == "abort":
                raise Refused(StatusCode[status], f"{status} for all")

    def told(self, topic: bytes, _: grpc.ServicerContext) -> bytes:
        return json.dumps(self.calls[topic.decode()]).encode()


def main(port: str, certificate: str = "", email: str | None = None, public_key: str = "") -> None:
    pubsub = PubSub(email, Path(public_key).read_bytes() if public_key else None)
    publish = pubsub.publish, None, types.PublishResponse.pb().SerializeToString
    services = {
        "google.pubsub.v1.Publisher": {"Publish": publish},
        "tests.Box": {"Calls": (pubsub.told, None, None)},
    }
    serve(port, certificate, -1, services)


if __name__ == "__main__":
    main(*sys.argv[1:])
