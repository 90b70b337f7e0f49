"""`outbox-tasks web`: the page, without an application around it."""

from __future__ import annotations

import ipaddress
import signal
import socket
from contextlib import closing, suppress

import click

from outbox_tasks.cli.shared.output import say
from outbox_tasks.cli.shared.store import installed
from outbox_tasks.errors import NotInstalled, PortTaken
from outbox_tasks.settings import Settings
from outbox_tasks.settings.web import WEB_PORT
from outbox_tasks.web import Page

CONNECTIONS_AT_MOST = 500
"""One more client is told that the server is busy. uvicorn has no limit for the time that a request's head may take."""

BEYOND = """\
Warning: it listens beyond this machine, and over plain HTTP others can read the passwords. Put a proxy in front that
speaks HTTPS."""


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--port", type=click.IntRange(0, 65_535), default=WEB_PORT, show_default=True, help="0: any free port.")
@click.option("--read-only", is_flag=True, help="Nobody can change anything.")
def web(host: str, port: int, read_only: bool) -> None:
    """Show the page in a browser, until Ctrl-C.

    People sign in with a name and a password of the setting `web_users`. Without it, the page does not start.
    """
    _, settings = installed() or (None, Settings())
    page = Page(settings, read_only=read_only)
    try:
        import uvicorn
    except ImportError as error:
        raise NotInstalled(what="The page", missing=error, packages="'outbox-tasks[web]'") from None
    config = uvicorn.Config(
        page.asgi,
        http="h11",
        ws="none",
        proxy_headers=False,  # the page looks itself: from X-Forwarded-Proto follows only that the cookie is for HTTPS
        server_header=False,
        access_log=False,
        log_config=None,
        limit_concurrency=CONNECTIONS_AT_MOST,
        backlog=CONNECTIONS_AT_MOST,
        h11_max_incomplete_event_size=32 * 1024,  # bytes of a request's head
        timeout_keep_alive=30,
        timeout_graceful_shutdown=10,  # for downloads, after Ctrl-C
    )
    with _listening(host, port) as listener:
        say(f"The page is at {_url(listener)}")
        if not ipaddress.ip_address(listener.getsockname()[0]).is_loopback:
            say(BEYOND, err=True)
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        with closing(page), suppress(KeyboardInterrupt):
            uvicorn.Server(config).run([listener])


def _listening(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        remedy = "Name another one with --port (0: any free one), or with --host an address of this host."
        raise PortTaken(what="The page", host=host, port=port, reason=error.strerror, remedy=remedy) from None


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"
