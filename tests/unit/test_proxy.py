"""The TCP proxy that faults are made with."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress

import psutil
import pytest

from lab.proxy import Proxy, through
from outbox_tasks.local.ports import LOOPBACK
from tests.conftest import eventually


@pytest.fixture
def echo() -> Iterator[int]:
    """The port of a server that sends back what it gets."""

    def answer(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            while data := connection.recv(100):
                connection.sendall(data)

    def accept() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=answer, args=(listener.accept()[0],), daemon=True).start()

    with socket.create_server((LOOPBACK, 0)) as listener:
        threading.Thread(target=accept, daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


def connected(proxy: Proxy) -> socket.socket:
    made = socket.create_connection((LOOPBACK, proxy.port), timeout=5)
    made.sendall(b"1")
    assert made.recv(1) == b"1"
    return made


def test_a_reset_is_an_error_and_new_connections_pass(echo: int) -> None:
    with Proxy(echo) as proxy, connected(proxy) as one:
        proxy.reset()
        with pytest.raises(ConnectionResetError):
            one.recv(1)
        connected(proxy).close()


def test_what_it_forgets_is_silent_and_what_is_new_passes(echo: int) -> None:
    with Proxy(echo) as proxy, connected(proxy) as one:
        proxy.forget()
        one.sendall(b"2")
        one.settimeout(0.05)
        with pytest.raises(TimeoutError):
            one.recv(1)
        connected(proxy).close()


def test_it_refuses_new_connections_only(echo: int) -> None:
    with Proxy(echo) as proxy, connected(proxy) as one:
        proxy.refuses = True
        with socket.create_connection((LOOPBACK, proxy.port), timeout=5) as other:
            assert other.recv(1) == b""
        one.sendall(b"2")
        assert one.recv(1) == b"2"


def test_it_keeps_nothing_of_connections_that_have_ended(echo: int) -> None:
    with Proxy(echo) as proxy:
        before = psutil.Process().num_fds()
        for _ in range(20):
            connected(proxy).close()
        eventually(lambda: psutil.Process().num_fds() <= before, 10)


def test_a_url_by_way_of_it_keeps_login_path_and_options() -> None:
    with Proxy(1) as proxy:
        url = through("postgresql://me:p%40ss@db.example:5432/shop?sslmode=require", proxy)
    assert url == f"postgresql://me:p%40ss@127.0.0.1:{proxy.port}/shop?sslmode=require"
