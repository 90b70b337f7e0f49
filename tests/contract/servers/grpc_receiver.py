"""A receiver of the gRPC publisher's calls.

    python -m tests.contract.servers.grpc_receiver PORT [CERTIFICATE]

It takes any bearer token but `wrong` and `nowhere`; what came with a token is told to whoever asks with the same. An
event type `answer.<STATUS>` is answered with that status for itself alone, `abort.<STATUS>` ends the whole call with
it, `silent` is passed over, and `raise` is an exception.
"""

from __future__ import annotations

import base64
import json
import sys
from collections import defaultdict
from typing import Any

import grpc
from grpc import StatusCode

from outbox_tasks.destinations.grpc.receiver import DeliverRequest, DeliverResponse
from tests.contract.servers.grpc_server import serve

LARGEST = 1 << 20
"""Bytes of a call, less than the publisher's own limit."""


class Receiver:
    def __init__(self) -> None:
        self.boxes: dict[str, list[dict[str, Any]]] = defaultdict(list)
        self.calls: dict[str, list[int]] = defaultdict(list)

    def deliver(self, request: Any, context: grpc.ServicerContext) -> Any:
        token = self.token(context)
        if token == "wrong":
            context.abort(StatusCode.UNAUTHENTICATED, "this token is not known")
        if token == "nowhere":
            context.abort(StatusCode.UNIMPLEMENTED, "as a server says that has no such service")
        self.calls[token].append(len(request.batch.events))
        for event in request.batch.events:
            kind, _, status = event.type.partition(".")
            if kind == "abort":
                context.abort(StatusCode[status], f"{status} for all")
            if kind == "raise":
                raise RuntimeError("as an application may")
        response = DeliverResponse()
        for event in request.batch.events:
            kind, _, status = event.type.partition(".")
            if kind == "answer":
                code = StatusCode[status].value[0]
                response.results.add(id=event.id, code=code, message=f"{status} for one", retry_after=7.5)
            elif kind != "silent":
                headers = request.headers[event.id].values if event.id in request.headers else {}
                self.boxes[token].append({
                    "event": base64.b64encode(event.SerializeToString()).decode(), "headers": dict(headers),
                })  # fmt: skip
                response.results.add(id=event.id)
        return response

    def received(self, _: bytes, context: grpc.ServicerContext) -> bytes:
        token = self.token(context)
        return json.dumps({"messages": self.boxes[token], "calls": self.calls[token]}).encode()

    @staticmethod
    def token(context: grpc.ServicerContext) -> str:
        return dict(context.invocation_metadata()).get("authorization", "").removeprefix("Bearer ")


def main(port: str, certificate: str = "") -> None:
    receiver = Receiver()
    deliver = receiver.deliver, DeliverRequest.FromString, DeliverResponse.SerializeToString
    services = {
        "outbox_tasks.v1.OutboxReceiver": {"Deliver": deliver},
        "tests.Box": {"Received": (receiver.received, None, None)},
    }
    serve(port, certificate, LARGEST, services)


if __name__ == "__main__":
    main(*sys.argv[1:])
