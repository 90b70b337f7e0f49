"""The servers at the other end: one file for each kind of destination.

`test_every_publisher.py` runs its whole suite against the class `Counterpart` of each file, or against its `KINDS`. A
new publisher adds a file.
"""

from __future__ import annotations

import importlib
import pkgutil
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self
from uuid import uuid4

from lab.frozen import frozen
from outbox_tasks.model import LeasedMessage


@dataclass(frozen=True)
class Received:
    """A message as it arrived: by name, what is the same over all transports."""

    attributes: dict[str, str]
    """CloudEvents attributes by their names, without prefixes and without `specversion`."""
    payload: bytes
    headers: dict[str, str] = field(default_factory=dict)
    """The message's own."""
    content_type: str | None = None


def parted(headers: Mapping[str, Any], prefix: str, payload: bytes, content_type: str | None) -> Received:
    """A message whose attributes are headers with this prefix, beside its own."""
    attributes = {name.removeprefix(prefix): value for name, value in headers.items() if name.startswith(prefix)}
    assert attributes.pop("specversion", "1.0") == "1.0"
    own = {name: value for name, value in headers.items() if not name.startswith(prefix)}
    return Received(attributes, payload, own, content_type)


class Counterpart(ABC):
    """One server, and a place on it for each test: `place`, a name that is new each time."""

    name: ClassVar[str]
    """How the tests call it: the URL's scheme."""
    keeps_order: ClassVar[bool] = True
    """Whether messages of one key arrive in the order in which they were sent."""
    json_only: ClassVar[bool] = False
    """Whether payloads must be JSON."""
    control_characters: ClassVar[bool] = True
    """Whether headers may have control characters, such as a tab."""
    largest: ClassVar[int | None] = None
    """Bytes of payload that the server takes; more is permanent, `too_large`. None: no limit that a test can reach."""
    notices_ends: ClassVar[bool] = True
    """Whether the client notices, before it sends, that the server has ended the connection."""
    patience: ClassVar[float] = 1.0
    """Seconds of a time limit that is long enough for three sends over a new connection."""

    def __init__(self) -> None:
        self.place = ""

    @classmethod
    def missing(cls) -> str | None:
        """Why it can't run here, such as a program that is not installed; None: it can."""
        return None

    @abstractmethod
    def start(self) -> None:
        """Start it and wait until it answers, at the same address each time. Nothing happens if it runs."""

    @abstractmethod
    def stop(self) -> None:
        """An orderly end."""

    @abstractmethod
    def kill(self) -> None:
        """`kill -9` of all its processes, and they are gone."""

    @property
    @abstractmethod
    def pid(self) -> int:
        """Its process, the one that serves."""

    @abstractmethod
    def url(self, place: str) -> str:
        """The destination's URL of a place; makes the place, if somebody has to."""

    @abstractmethod
    def url_at(self, port: int) -> str:
        """A destination's URL at some port of this machine, where a test listens, or nobody."""

    @abstractmethod
    def raw(self) -> list[Any]:
        """What has arrived at the test's place, in order, as its client reads it. May be called again, for more."""

    @staticmethod
    @abstractmethod
    def read(arrived: Any) -> Received:
        """The same of one message."""

    def received(self) -> list[Received]:
        return [self.read(arrived) for arrived in self.raw()]

    def wrong_password_url(self, place: str) -> str | None:
        """The URL with credentials that the server refuses; None: it asks for none."""
        return None

    def unroutable_url(self, place: str) -> str | None:
        """A URL of a place that does not exist, where that is an error; None: places are made as needed."""
        return None

    def forbidden_url(self, place: str) -> str | None:
        """A URL of a place to which nobody may send, where there are such; None: there are none here."""
        return None

    def refused(self, message: LeasedMessage) -> LeasedMessage | None:
        """The message, changed so that this destination refuses it for good, and it alone; None: it takes all."""
        return None

    def spoil(self) -> bool:
        """Let the test's place refuse all messages from now on; False: that can't be done."""
        return False

    def new_place(self) -> str:
        """The URL of a place that nobody has used."""
        self.place = f"outbox-test-{uuid4().hex[:12]}"
        return self.url(self.place)

    def end(self) -> None:
        """An end without delay: nobody needs it any more."""
        self.kill()
        self.stop()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Inside it does not answer, with any of its threads."""
        with frozen(self.pid):
            threads = Path(f"/proc/{self.pid}/task")
            while any(stat.read_text().rpartition(") ")[2][0] != "T" for stat in threads.glob("*/stat")):
                time.sleep(0.001)
            yield


def every() -> list[type[Counterpart]]:
    """All that there are, by name."""
    modules = [importlib.import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)]
    kinds = [kind for module in modules for kind in getattr(module, "KINDS", None) or (module.Counterpart,)]
    return sorted(kinds, key=lambda kind: kind.name)
