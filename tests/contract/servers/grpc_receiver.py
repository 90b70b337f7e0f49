"""A receiver of the gRPC publisher's calls, on two ports: one with the service, one without.

    python grpc_receiver.py PORT OTHER_PORT [CERTIFICATE KEY]

It takes any bearer token but `wrong`; what came with a token is told to whoever asks with the same. An event type
`answer.<STATUS>` is answered with that status for itself alone, `abort.<STATUS>` ends the whole call with it,
`silent` is passed over, and `raise` is an exception.
"""

from __future__ import annotations

import base64
import json
import signal
import sys
from collections import defaultdict
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
from grpc import StatusCode

from outbox_tasks.destinations.grpc.receiver import DeliverRequest, DeliverResponse

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


def service(name: str, **methods: Any) -> grpc.GenericRpcHandler:
    return grpc.method_handlers_generic_handler(name, methods)


def main(port: str, other_port: str, *files: str) -> None:
    receiver = Receiver()
    server = grpc.server(
        futures.ThreadPoolExecutor(4), options=[("grpc.max_receive_message_length", LARGEST), ("grpc.so_reuseport", 0)]
    )
    deliver = grpc.unary_unary_rpc_method_handler(
        receiver.deliver, DeliverRequest.FromString, DeliverResponse.SerializeToString
    )
    server.add_generic_rpc_handlers((
        service("outbox_tasks.v1.OutboxReceiver", Deliver=deliver),
        service("tests.Box", Received=grpc.unary_unary_rpc_method_handler(receiver.received)),
    ))  # fmt: skip
    if files:
        certificate, key = (Path(file).read_bytes() for file in files)
        server.add_secure_port(f"127.0.0.1:{port}", grpc.ssl_server_credentials([(key, certificate)]))
    else:
        server.add_insecure_port(f"127.0.0.1:{port}")
    empty = grpc.server(futures.ThreadPoolExecutor(1), options=[("grpc.so_reuseport", 0)])
    empty.add_insecure_port(f"127.0.0.1:{other_port}")
    signal.signal(signal.SIGTERM, lambda *_: server.stop(grace=1))
    server.start()
    empty.start()
    print("ready", flush=True)
    server.wait_for_termination()


if __name__ == "__main__":
    main(*sys.argv[1:])
