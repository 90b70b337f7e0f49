"""The servers at the other end. Each runs until the last test here is done, however many modules speak to it; RabbitMQ
runs for others too."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.contract.counterparts import Counterpart, rabbitmq
from tests.contract.counterparts.aws import without_aws

Running = Callable[[type[Counterpart]], Counterpart]


@pytest.fixture(scope="package", autouse=True)
def nowhere() -> Iterator[None]:
    """No test here may reach Amazon."""
    with pytest.MonkeyPatch.context() as patch:
        without_aws(patch)
        yield


@pytest.fixture(scope="package")
def running(nowhere: None) -> Iterator[Running]:
    """Gives the counterpart of a kind, as it runs; skips the test if it can't run here."""
    started: dict[type[Counterpart], Counterpart] = {}

    def run(kind: type[Counterpart]) -> Counterpart:
        if reason := kind.missing():
            pytest.skip(reason)
        if kind not in started:
            started[kind] = rabbitmq.node() if kind is rabbitmq.Counterpart else kind()
        started[kind].start()
        return started[kind]

    yield run
    started.pop(rabbitmq.Counterpart, None)
    for each in started.values():
        each.end()


@pytest.fixture(scope="module")
def server(request: pytest.FixtureRequest, running: Running) -> Counterpart:
    """The server of the module's `Counterpart`."""
    return running(request.module.Counterpart)


@pytest.fixture
def target(server: Counterpart) -> Iterator[Counterpart]:
    """The server, running, with a place of the test's own."""
    server.start()
    server.new_place()
    yield server
    server.start()
