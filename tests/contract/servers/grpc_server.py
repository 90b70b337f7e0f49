"""What the servers that speak gRPC have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc

Method = tuple[Callable[..., Any], Callable[[bytes], Any] | None, Callable[[Any], bytes] | None]
"""The method, and what reads its requests and writes its answers."""


def serve(port: str, certificate: str, largest: int, services: Mapping[str, Mapping[str, Method]]) -> None:
    """At this port, with TLS if there is a certificate; its key is in the same file."""
    options = [("grpc.max_receive_message_length", largest), ("grpc.so_reuseport", 0)]
    server = grpc.server(futures.ThreadPoolExecutor(8), options=options)
    for name, methods in services.items():
        behaviours = {each: grpc.unary_unary_rpc_method_handler(*method) for each, method in methods.items()}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, behaviours),))
    if certificate:
        pair = (Path(certificate).read_bytes(),) * 2
        server.add_secure_port(f"127.0.0.1:{port}", grpc.ssl_server_credentials([pair]))
    else:
        server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    print("ready", flush=True)
    server.wait_for_termination()
