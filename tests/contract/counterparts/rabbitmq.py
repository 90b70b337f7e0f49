"""RabbitMQ, as Debian packages it: a node of our own, with an epmd of its own, in a directory that goes with it. That
of the stable release, and version 4, which .ci/sid.sh unpacks."""

from __future__ import annotations

import os
import shutil
import subprocess
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import amqp
import pytest

from outbox_tasks.broker.names import STAMP
from outbox_tasks.local.ports import LOOPBACK, free_port
from outbox_tasks.local.processes import Child
from tests.conftest import eventually
from tests.contract.counterparts import Received, parted
from tests.contract.own_server import ChildCounterpart, listens

# Not the one on the PATH: that is a wrapper which becomes another user and can't run beside the system's server.
SERVER = "usr/lib/rabbitmq/bin/rabbitmq-server"

UNPACKED = Path.home() / ".cache/outbox_tasks/servers/rabbitmq"

# Erlang's own format. The other one, RabbitMQ translates at each start, which takes a second of the processor's time.
CONFIG = """
[{{rabbit, [
  {{tcp_listeners, [{{"127.0.0.1", {port}}}]}},
  {{max_message_size, {largest}}},
  {{log, [{{console, [{{enabled, true}}, {{level, warning}}]}}, {{file, [{{level, none}}]}}]}}
]}}].
"""


class Counterpart(ChildCounterpart):
    name: ClassVar[str] = "amqp"
    largest: ClassVar[int | None] = 200_000
    root: ClassVar[Path] = Path("/")

    def __init__(self) -> None:
        super().__init__()
        self._epmd_port, self._node_port = free_port(), free_port()
        self._epmd: Child | None = None

    @classmethod
    def missing(cls) -> str | None:
        is_here = (cls.root / SERVER).exists() and shutil.which("epmd")
        return None if is_here else "RabbitMQ is not installed (the Debian package rabbitmq-server)"

    def launch(self) -> Child:
        (self.directory / "rabbitmq.config").write_text(CONFIG.format(port=self.port, largest=self.largest))
        if self._epmd is None or not self._epmd.alive:
            self._epmd = Child.start("epmd", ["epmd"], env=self._env)
            eventually(lambda: listens(self._epmd_port))
        return Child.start("RabbitMQ", [str(self.root / SERVER)], env=self._env, cwd=self.directory)

    def answers(self) -> bool:
        try:
            self.connection().close()
        except (OSError, amqp.AMQPError):
            return False
        return True

    def end(self) -> None:
        super().end()
        if self._epmd is not None:
            self._epmd.stop()

    def evaluate(self, erlang: str) -> None:
        """Let the node do this."""
        argv = ["erl_call", "-sname", "outbox@localhost", "-timeout", "60", "-e"]
        done = subprocess.run(argv, env=self._env, input=f"{erlang}.\n", capture_output=True, text=True, timeout=60)
        assert done.stdout.startswith("{ok"), done.stdout + done.stderr

    def url(self, place: str) -> str:
        self.declare(place)
        return super().url(place)

    def url_on(self, port: int, place: str) -> str:
        return f"amqp://guest:guest@{LOOPBACK}:{port}/?queue={place}"

    def wrong_password_url(self, place: str) -> str:
        return self.url(place).replace("guest:guest", "guest:wrong")

    def unroutable_url(self, place: str) -> str:
        return f"{self.broker}?queue={place}-nowhere"

    def spoil(self) -> bool:
        with closing(self.connection()) as connection:
            connection.channel().queue_delete(self.place)
        return True

    @staticmethod
    def read(arrived: Any) -> Received:
        # py-amqp makes a text of no bytes
        return parted(arrived.headers, "ce-", arrived.body or b"", arrived.properties["content_type"])

    @property
    def broker(self) -> str:
        return f"amqp://guest:guest@{LOOPBACK}:{self.port}/"

    def connection(self) -> Any:
        """An open connection; to be closed."""
        connection = amqp.Connection(f"{LOOPBACK}:{self.port}", connect_timeout=5)
        connection.connect()
        return connection

    @property
    def version(self) -> str:
        with closing(self.connection()) as connection:
            return str(connection.server_properties["version"])

    def declare(self, queue: str, **options: Any) -> None:
        with closing(self.connection()) as connection:
            connection.channel().queue_declare(queue, durable=True, auto_delete=False, **options)

    def raw(self, queue: str | None = None) -> list[Any]:
        """The messages of a queue; they stay there."""
        with closing(self.connection()) as connection:
            channel = connection.channel()
            channel.auto_decode = False
            return list(iter(lambda: channel.basic_get(queue or self.place), None))

    @property
    def _env(self) -> dict[str, str]:
        home = str(self.directory)
        return {
            "HOME": home,  # its cookie
            "PATH": f"{self.root}/usr/lib/erlang/bin:{os.environ['PATH']}",
            "ERL_EPMD_PORT": str(self._epmd_port),
            "ERL_EPMD_ADDRESS": LOOPBACK,
            # Then its script becomes the server, instead of waiting for it.
            "RUNNING_UNDER_SYSTEMD": "true",
            "RABBITMQ_NODENAME": "outbox@localhost",
            "RABBITMQ_DIST_PORT": str(self._node_port),
            "RABBITMQ_CONFIG_FILE": f"{home}/rabbitmq.config",
            "RABBITMQ_CONF_ENV_FILE": f"{home}/none",
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{home}/none",
            "RABBITMQ_MNESIA_BASE": f"{home}/mnesia",
            "RABBITMQ_GENERATED_CONFIG_DIR": f"{home}/generated",
            "RABBITMQ_LOG_BASE": f"{home}/log",
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 1:1 -start_epmd false "
            "-kernel inet_dist_use_interface {127,0,0,1}",
        }


class Rabbit4(Counterpart):
    """RabbitMQ 4."""

    root = UNPACKED

    @classmethod
    def missing(cls) -> str | None:
        return None if (UNPACKED / "ready").exists() else "RabbitMQ 4 is not here: .ci/sid.sh unpacks it"


node, node4 = cache(Counterpart), cache(Rabbit4)
"""The one of this process, which lasts as long: to load RabbitMQ takes six seconds of the processor's time."""


def running(version: int) -> Counterpart:
    """A running RabbitMQ 3 or 4. Skips the test if there is none."""
    if missing := (Counterpart if version == 3 else Rabbit4).missing():
        pytest.skip(missing)
    server = node() if version == 3 else node4()
    server.start()
    with closing(server.connection()) as connection:
        connection.channel().exchange_delete(STAMP)  # that of an earlier test's outbox
    return server


@pytest.fixture
def rabbit() -> Counterpart:
    """A running RabbitMQ. Skips the test if there is none."""
    return running(3)
