"""Problems of destinations, as the doctor sees them: whether they can be reached is tried, and nothing is sent."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from outbox_tasks.local.ports import LOOPBACK
from outbox_tasks.operating.problems import Severity, examine
from outbox_tasks.operating.problems.addresses import Address
from outbox_tasks.operating.problems.destinations import connection_errors
from tests.certificates import self_signed
from tests.conftest import MakeSettings, Stream
from tests.integration.doctoring import found

OF_DESTINATIONS = (
    "no_destinations", "publisher_missing", "destination_url", "destination_away", "destination_partly",
    "destination_certificate", "destination_unchecked",
)  # fmt: skip


@contextmanager
def listening(context: ssl.SSLContext | None = None) -> Iterator[int]:
    """The port of a server that takes connections."""
    with socket.create_server((LOOPBACK, 0)) as server:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    taken, _ = server.accept()
                    with suppress(OSError), context.wrap_socket(taken, server_side=True) if context else taken:
                        pass

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
        thread.join(5)


def test_a_destination_on_an_unknown_broker_is_not_checked(settings: MakeSettings) -> None:
    """Its settings are right: where the relay is installed, they need no broker."""
    tasks = {"tasks": {"url": "celery://?queue=shop"}}
    seen = found(settings(broker_url=None, destinations=tasks), *OF_DESTINATIONS)
    assert seen.keys() == {"destination_unchecked"}
    assert seen["destination_unchecked"].severity is Severity.NOTE


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_webhook_in_a_private_network_is_judged_as_its_publisher_judges_it(settings: MakeSettings, host: str) -> None:
    with listening() as port:
        url = f"http://{host}:{port}/hooks"
        away = found(settings(destinations={"hooks": {"url": url}}), *OF_DESTINATIONS)["destination_away"]
        assert "outbox_private=allow is not set" in away.fact
        allowed = {"hooks": {"url": f"{url}?outbox_private=allow"}}
        assert found(settings(destinations=allowed), *OF_DESTINATIONS) == {}


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    return self_signed(tmp_path / "server.pem", "localhost")


def test_a_destination_that_answers_has_no_problem(settings: MakeSettings) -> None:
    assert found(settings(), *OF_DESTINATIONS) == {}
    in_order = examine(settings(), deep=True).in_order["Destinations"]
    assert in_order[:2] == ["each has a publisher", "each can be reached from here"]


def test_a_destination_out_of_reach(settings: MakeSettings, stream: Stream) -> None:
    some = {"orders": {"url": stream.url}, "gone": {"url": "nats://me:secret@127.0.0.1:1/shop"}}
    away = found(settings(destinations=some), *OF_DESTINATIONS)
    assert away.keys() == {"destination_away"}
    assert away["destination_away"].severity is Severity.ERROR
    assert "gone (nats://me:***@127.0.0.1:1/shop) can't be reached" in away["destination_away"].fact
    assert "secret" not in str(away)


def test_a_name_that_can_t_be_resolved(settings: MakeSettings) -> None:
    nowhere = {"gone": {"url": "https://does-not-exist.invalid/hooks"}}
    assert "destination_away" in found(settings(destinations=nowhere), "destination_away")


def test_one_of_several_servers_is_out_of_reach(settings: MakeSettings) -> None:
    with listening() as port:
        some = {"events": {"url": f"kafka://{LOOPBACK}:{port},{LOOPBACK}:1/orders"}}
        partly = found(settings(destinations=some), *OF_DESTINATIONS)
    assert partly.keys() == {"destination_partly"}
    assert "1 of its 2 servers" in partly["destination_partly"].fact


def test_a_certificate_that_is_not_trusted(settings: MakeSettings, certificate: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with listening(context) as port:
        url = f"grpcs://localhost:{port}"
        distrusted = found(settings(destinations={"events": {"url": url}}), *OF_DESTINATIONS)
        trusted = found(settings(destinations={"events": {"url": f"{url}?ca_file={certificate}"}}), *OF_DESTINATIONS)
    assert distrusted.keys() == {"destination_certificate"}
    assert "self-signed certificate" in distrusted["destination_certificate"].fact
    assert trusted == {}


def test_a_server_without_tls(settings: MakeSettings) -> None:
    with listening() as port:
        some = {"events": {"url": f"grpcs://localhost:{port}"}}
        assert found(settings(destinations=some), *OF_DESTINATIONS).keys() == {"destination_away"}


def test_a_publisher_that_is_not_installed(settings: MakeSettings) -> None:
    missing = found(settings(destinations={"fax": {"url": "fax://localhost:1/"}}), "publisher_missing")
    assert "'fax'" in missing["publisher_missing"].fact


def test_a_url_that_its_publisher_refuses(settings: MakeSettings) -> None:
    wrong = found(
        settings(destinations={"orders": {"url": "redis+stream://localhost:6379/one/two"}}), "destination_url"
    )
    assert "destinations.orders.url" in wrong["destination_url"].fact


def test_a_url_without_an_address(settings: MakeSettings) -> None:
    unknown = found(settings(destinations={"own": {"url": "own://"}}), "destination_unchecked")["destination_unchecked"]
    assert unknown.severity is Severity.NOTE


def test_no_destination_is_configured(settings: MakeSettings) -> None:
    none = found(settings(destinations={}), "no_destinations")["no_destinations"]
    assert none.fact.startswith("No destination is configured: there is no settings file /")


def test_a_server_that_does_not_answer_is_not_waited_for() -> None:
    """A backlog that is full lets nobody in."""
    with socket.socket() as server, socket.socket() as first:
        server.bind((LOOPBACK, 0))
        server.listen(0)
        first.connect(server.getsockname())
        full = Address(LOOPBACK, server.getsockname()[1])
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(server.getsockname())
        assert connection_errors([full], timeout=0.2) == {full: "no answer within 0.2 s"}
        for filler in fillers:
            filler.close()
