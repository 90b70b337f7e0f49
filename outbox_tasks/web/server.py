"""The server of `outbox-tasks web`.

waitress waits for ever for a head that comes byte by byte, and takes nobody else in while it has too many of them.
"""

from __future__ import annotations

import socket
import time
from typing import Any

from waitress.channel import HTTPChannel
from waitress.server import TcpWSGIServer

HEAD, WHOLE = 10.0, 120.0
"""Seconds within which the head of a request must have come, and all of it."""

MOST = 500
"""Connections. For another one, the one that has waited for a request longest is closed."""

SPOOLED = 1 << 40
"""Bytes of answers that nobody has fetched yet. They are in a file: no thread waits for a slow browser."""


class Channel(HTTPChannel):  # type: ignore[misc]
    """A connection that knows since when its request comes in."""

    since: float

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.since = time.monotonic()
        super().__init__(*arguments, **options)

    def received(self, data: bytes) -> Any:
        if self.request is None:
            self.since = time.monotonic()
        return super().received(data)

    @property
    def idle(self) -> bool:
        """Whether nobody works for it: it waits for a request, or for the rest of one."""
        return not self.requests and not self.total_outbufs_len

    def is_late(self) -> bool:
        """Whether its request should have come long ago."""
        beginning = self.request is None or not self.request.headers_finished
        return self.idle and time.monotonic() - self.since > (HEAD if beginning else WHOLE)


class Server(TcpWSGIServer):  # type: ignore[misc]
    """Serves one listener."""

    channel_class = Channel

    def __init__(self, application: Any, listener: socket.socket, **options: Any) -> None:
        address = (listener.family, listener.type, listener.proto, listener.getsockname())
        limits = {
            "connection_limit": 2 * MOST, "asyncore_use_poll": True, "cleanup_interval": 1, "backlog": MOST,
            "outbuf_high_watermark": SPOOLED,
        }  # fmt: skip
        super().__init__(application, _sock=listener, sockinfo=address, bind_socket=False, **limits, **options)

    def maintenance(self, now: float) -> None:
        super().maintenance(now)
        for channel in list(self.active_channels.values()):
            channel.will_close = channel.will_close or channel.is_late()

    def handle_accept(self) -> None:
        super().handle_accept()
        if len(self.active_channels) > MOST:
            waiting = [channel for channel in self.active_channels.values() if channel.idle]
            if waiting:
                min(waiting, key=lambda channel: channel.since).handle_close()
