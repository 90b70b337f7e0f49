"""A server that can't show who it is gets nothing: no handshake ends with it, and no secret reaches it."""

from __future__ import annotations

import re
import socket
import ssl
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from outbox_tasks.broker.broker import Broker
from outbox_tasks.broker.pinned import PinnedCelery
from outbox_tasks.errors import BrokerUnreachable, ConfigurationError, WebhookFailed
from outbox_tasks.model import Outcome, Result
from outbox_tasks.relay.publishers import Publishers
from outbox_tasks.settings import Settings
from outbox_tasks.telemetry import alerts
from outbox_tasks.worker.install import install
from tests.certificates import self_signed
from tests.conftest import eventually
from tests.contract.messages import loaded, message, sent_by, within

SECRET = b"S3cretW0rd"
TLS = b"\x16"
"""The first byte of a handshake."""
LOGIN = f"me:{SECRET.decode()}@127.0.0.1"

GREETING = b'INFO {"server_id":"x","version":"2.10.0","proto":1,"max_payload":1048576,"tls_required":true}\r\n'
"""With which a NATS server asks for TLS."""
PONG = b"PONG\r\n"


@dataclass
class Caller:
    """What a client said to us."""

    raw: bytes = b""
    plain: bytes = b""
    trusts: bool = False
    """Whether the handshake has ended."""
    gone: bool = False


class Listener:
    """Shows a certificate to everybody, and notes what they say."""

    def __init__(self, certificate: Path, greeting: bytes = b"", host: str = "127.0.0.1") -> None:
        self.callers: list[Caller] = []
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificate)
        self._greeting = greeting
        self._socket = socket.create_server((host, 0))
        self.port = self._socket.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._socket.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._socket.accept()
                self.callers.append(Caller())
                threading.Thread(target=self._hear, args=(connection, self.callers[-1]), daemon=True).start()

    def _hear(self, connection: socket.socket, caller: Caller) -> None:
        with suppress(OSError), connection:
            connection.settimeout(5)
            connection.sendall(self._greeting)
            while PONG in self._greeting and (data := connection.recv(65536)):  # it speaks no TLS
                caller.raw += data
            caller.raw += connection.recv(65536, socket.MSG_PEEK)
            with self._context.wrap_socket(connection, server_side=True) as tls:
                caller.trusts = True
                caller.plain = tls.recv(65536)
        caller.gone = True


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return self_signed(tmp_path_factory.mktemp("tls") / "ours.pem", "127.0.0.1", "localhost")


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for another name."""
    return self_signed(tmp_path_factory.mktemp("tls") / "others.pem", "other.example")


def got_nothing(server: Listener, *, handshake: bool = False) -> None:
    """Clients came, all have left, and none told us anything; `handshake`: its end is allowed."""
    eventually(lambda: server.callers and all(caller.gone for caller in server.callers))
    assert handshake or not any(caller.trusts for caller in server.callers)
    assert not any(SECRET in caller.raw + caller.plain for caller in server.callers)


# Pub/Sub: test_pubsub.py
BY_NAME = {
    "amqps": f"amqps://{LOGIN}:{{port}}//?queue=q&ssl_ca_certs={{ca}}",
    "azureservicebus": "azureservicebus://k:S3cretW0rd@127.0.0.1:{port}/orders?ca_file={ca}",
    "celery, amqps": f"celery://?broker=amqps://{LOGIN}:{{port}}//?ssl_ca_certs={{ca}}",
    "celery, rediss": f"celery://?broker=rediss://{LOGIN}:{{port}}/0?ssl_ca_certs={{ca}}",
    "grpcs": "grpcs://127.0.0.1:{port}?token=S3cretW0rd&ca_file={ca}",
    "kafka": f"kafka://{LOGIN}:{{port}}/orders?tls=true&ca={{ca}}",
    "rediss": f"rediss://{LOGIN}:{{port}}/0/q?ssl_ca_certs={{ca}}",
}
"""With a file of authorities in the URL."""

BY_SYSTEM = {
    "https": f"https://{LOGIN}:{{port}}/hook?outbox_private=allow",
    "mqtts": f"mqtts://{LOGIN}:{{port}}/orders",
    "nats": f"nats://{LOGIN}:{{port}}/orders?tls=true",
    "rediss+stream": f"rediss+stream://{LOGIN}:{{port}}/0/s",
}
"""These trust the system's authorities."""

KNOWN = BY_NAME | BY_SYSTEM
UNKNOWN = {
    **{name: re.sub("[?&][a-z_]+={ca}", "", url) for name, url in KNOWN.items()},
    "celery, sentinel": f"celery://?broker=sentinel://{LOGIN}:{{port}}/0?ssl_cert_reqs=required",
    "nats, whose server asks for TLS": f"nats://{LOGIN}:{{port}}/orders",
    "sqs": "sqs://eu-west-1/123456789012/q?endpoint=https://127.0.0.1:{port}",
}


def send(url: str, server: Listener, ca: Path) -> Outcome:
    """What becomes of a message to this place. No socket is left to the garbage collector."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ResourceWarning)
        outcome = sent(url.format(port=server.port, ca=ca), 3.0)
    assert not [str(warning.message) for warning in caught if warning.category is ResourceWarning]
    return outcome


def sent(url: str, seconds: float) -> Outcome:
    more: dict[str, Any] = {"destination": {"transport_options": {"master_name": "m"}}} if "sentinel" in url else {}
    with closing(loaded(url, send_timeout=seconds, **more)) as publisher:
        [outcome] = sent_by(publisher, message())
    return outcome


class TestDestinations:
    @pytest.mark.parametrize("url", UNKNOWN.values(), ids=UNKNOWN)
    def test_a_certificate_that_nobody_knows(self, url: str, ours: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "k")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET.decode())
        with closing(Listener(ours, GREETING if url.startswith("nats") else b"")) as server:
            assert send(url, server, ours).result is Result.OUTAGE
            got_nothing(server)

    @pytest.mark.parametrize("name", KNOWN)
    def test_a_certificate_that_is_known_is_trusted_if_it_has_the_right_name(
        self, name: str, ours: Path, others: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        greeting = GREETING if name == "nats" else b""
        for certificate in (ours, others):
            if name in BY_SYSTEM:
                monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
            with closing(Listener(certificate, greeting)) as server:
                if certificate is ours:
                    eventually(
                        lambda: send(KNOWN[name], server, ours) and any(caller.trusts for caller in server.callers)
                    )
                else:
                    assert send(KNOWN[name], server, others).result is Result.OUTAGE
                    got_nothing(server, handshake=name == "grpcs")  # gRPC looks at the name after the handshake

    def test_a_server_of_nats_that_offers_none_is_told_nothing(self, ours: Path) -> None:
        """Nor is it sent anything: there may be no secret to keep."""
        for login in (LOGIN, "127.0.0.1", "S3cretW0rd@127.0.0.1"):
            url = f"nats://{login}:{{port}}/orders?tls=true"
            with closing(Listener(ours, GREETING.replace(b',"tls_required":true', b"") + PONG)) as server:
                assert send(url, server, ours).code == "tls"
                got_nothing(server)
                assert b"ce-id" not in server.callers[0].raw

    def test_a_server_that_never_shakes_hands(self, ours: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "k")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET.decode())
        with socket.create_server(("127.0.0.1", 0)) as silent, ThreadPoolExecutor(len(UNKNOWN)) as senders, within(3):
            urls = [url.format(port=silent.getsockname()[1], ca=ours) for url in UNKNOWN.values()]
            outcomes = list(senders.map(lambda url: sent(url, 1.0), urls))
        assert {outcome.result for outcome in outcomes} == {Result.OUTAGE}


def test_the_webhook_of_alerts(ours: Path) -> None:
    with closing(Listener(ours)) as server:
        with pytest.raises(WebhookFailed, match=r"(?i)certificate"):
            alerts.post(f"https://{LOGIN}:{server.port}/", {})
        got_nothing(server)


def reach(app: Celery) -> None:
    """Connect as workers do."""
    with app.connection_for_read() as connection:
        connection.ensure_connection(max_retries=1)


class TestTheRelaysBroker:
    URLS = (f"rediss://{LOGIN}:{{port}}/0", f"amqps://{LOGIN}:{{port}}//")

    @pytest.mark.parametrize("url", URLS)
    def test_a_certificate_that_nobody_knows_unless_the_url_says_that_any_will_do(self, url: str, ours: Path) -> None:
        for more in ("", "?ssl_cert_reqs=none"):
            with closing(Listener(ours)) as server:
                settings = Settings(broker_url=url.format(port=server.port) + more)
                app = PinnedCelery("t", broker=str(settings.broker_url), settings=settings, timeout=1)
                with pytest.raises(BrokerUnreachable, match=r"(?i)" if more else r"(?i)certificate"):
                    Broker(app, settings, timeout=1).lengths()
                if more:
                    assert server.callers[0].trusts
                    continue
                with pytest.raises(app.trouble, match=r"(?i)certificate"):
                    reach(app)
                got_nothing(server)

    def test_each_of_several_hosts_shows_its_own_name(self, tmp_path: Path) -> None:
        one, two = self_signed(tmp_path / "one", "127.0.0.1"), self_signed(tmp_path / "two", "127.0.0.2")
        (tmp_path / "ca").write_bytes(one.read_bytes() + two.read_bytes())
        with closing(Listener(one)) as first, closing(Listener(two, b"", "127.0.0.2")) as second:
            url = f"amqps://127.0.0.1:{first.port};amqps://127.0.0.2:{second.port}?ssl_ca_certs={tmp_path / 'ca'}"
            app = PinnedCelery("t", broker=url, settings=Settings(broker_url=url), timeout=1)
            with app.connection_for_read() as connection:
                for server in (first, second, first):
                    before = len(server.callers)
                    with suppress(Exception):
                        connection.connection  # noqa: B018 - connects
                    assert [caller.trusts for caller in server.callers[before:]] == [True]
                    connection.maybe_switch_next()

    @pytest.mark.parametrize(
        "url",
        [
            "rediss://:pw@h/0?ssl_cert_reqs=maybe", "redis://u:pw/x@h/0", "amqp://u:[pw@h",
            "amqps://u:pw@h?ssl_ciphers=all",
        ],
    )  # fmt: skip
    def test_a_url_that_nobody_understands(self, url: str) -> None:
        settings = Settings(broker_url=url)
        with pytest.raises(ConfigurationError, match="broker_url") as caught:
            PinnedCelery("t", broker=url, settings=settings).connection_for_write()
        assert "pw" not in str(caught.value)


class TestAnApplicationsBroker:
    """The relay is installed in the application's app."""

    def app(self, url: str, **conf: Any) -> Celery:
        app = Celery("shop", broker=url, set_as_current=False)
        app.conf.update(broker_connection_timeout=1, broker_transport_options={"socket_timeout": 1}, **conf)
        return app

    @pytest.mark.parametrize(
        ("url", "conf"),
        [(f"redis://{LOGIN}:{{port}}/0", {"broker_use_ssl": True}), (f"amqps://{LOGIN}:{{port}}//", {})],
    )
    def test_a_certificate_that_nobody_knows(self, url: str, conf: dict[str, Any], ours: Path) -> None:
        with closing(Listener(ours)) as server:
            app = self.app(url.format(port=server.port), **conf)
            resources = install(app, Settings(destinations={"tasks": {"url": "celery://?task=t", "confirm": "sent"}}))
            with pytest.raises(Exception, match=r"(?i)certificate"):
                reach(app)
            with pytest.raises(BrokerUnreachable, match=r"(?i)certificate"):
                resources.broker.lengths()
            [outcome] = sent_by(Publishers(resources.settings)["tasks"], message(destination="tasks"))
            assert "certificate" in str(outcome.error).lower()
            got_nothing(server)

    def test_a_nudge_to_an_app_without_the_relay(self, ours: Path) -> None:
        with closing(Listener(ours)) as server:
            app = self.app(f"sentinel://{LOGIN}:{server.port}/0?ssl_cert_reqs=required")
            app.conf.broker_transport_options["master_name"] = "m"
            with pytest.raises(BrokerUnreachable, match=r"(?i)certificate|No master found"):
                Broker(app, Settings(), timeout=1).wake_claim()
            got_nothing(server)
            assert {caller.raw[:1] for caller in server.callers} == {TLS}

    def test_what_it_says_itself_stays_also_for_destinations(self, others: Path) -> None:
        with closing(Listener(others)) as server:
            tls = {"ssl_ca_certs": str(others), "ssl_check_hostname": False}
            app = self.app(f"redis://{LOGIN}:{server.port}/0", broker_use_ssl=tls)
            resources = install(app, Settings(destinations={"tasks": {"url": "celery://?task=t", "confirm": "sent"}}))
            sent_by(Publishers(resources.settings)["tasks"], message(destination="tasks"))
            assert [caller.trusts for caller in server.callers][:1] == [True]
