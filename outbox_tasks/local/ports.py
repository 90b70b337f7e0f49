"""Ports on the loopback interface."""

from __future__ import annotations

import random
import socket

LOOPBACK = "127.0.0.1"

# Below the ports of outgoing connections (32768 and up on Linux, 49152 on macOS): they might take the port of a server
# that is down for a moment.
CHOICE = range(20_000, 30_000)


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: TIME_WAIT doesn't count
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
        return True


def free_port(preferred: int | None = None) -> int:
    """A port that is free now, the preferred one if possible. Somebody else may still be faster."""
    if preferred is not None and is_free(preferred):
        return preferred
    while not is_free(port := random.choice(CHOICE)):
        pass
    return port
