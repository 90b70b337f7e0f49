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
from typing import Any
from urllib.parse import parse_qs

import grpc
from google.auth import jwt
from google.pubsub_v1 import types
from grpc import StatusCode

from tests.contract.servers.grpc_server import serve

REQUEST = 10_000_000
SLOW = 1.0
SCOPE = "https://www.googleapis.com/auth/pubsub"


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
            self.authorize(context)
            self.check(request, context)
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
            context.abort(StatusCode.UNAUTHENTICATED, "Request had invalid authentication credentials.")

    @staticmethod
    def check(request: Any, context: grpc.ServicerContext) -> None:
        """Abort the request for what Google would refuse."""
        if (name := request.topic.rpartition("/")[2]).startswith("nobody"):
            context.abort(StatusCode.NOT_FOUND, f"Resource not found (resource={name}).")
        if (size := request.ByteSize()) > REQUEST:
            details = f"request_size is too large. You passed {size}, but the maximum value is {REQUEST}."
            context.abort(StatusCode.INVALID_ARGUMENT, f"The value for {details}")
        if len({message.ordering_key for message in request.messages}) > 1:
            context.abort(StatusCode.FAILED_PRECONDITION, "All messages must have the same ordering key.")
        for message in request.messages:
            kind, _, status = message.attributes.get("ce-type", "").partition(".")
            if kind == "abort":
                context.abort(StatusCode[status], f"{status} for all")

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
