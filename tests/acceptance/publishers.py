"""A destination that does what the payload says: how the tests make a send fail, hang or kill its worker.

It comes as a package of its own would: by an entry point in a distribution, here one made for the test.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from struct import pack

from billiard import current_process

from outbox_tasks.destinations.redis_stream import RedisStreamPublisher
from outbox_tasks.model import LeasedMessage, Outcome
from outbox_tasks.settings import Settings
from outbox_tasks.settings.destination import Destination

SCHEME = "obedient"


class ObedientPublisher:
    """`obedient://host:port/db/stream`: a Redis Stream for payloads that say nothing else.

    A payload may be a JSON object with one of `die`; `garble`; `raise`; `refuse`: a code to be dead with; `fail`: how
    often to fail before it is sent, with `code` and `retry_after`; `nap`: how many seconds to take. Two threads or
    greenlets can't use it at once.
    """

    green = True

    def __init__(self, destination: Destination, settings: Settings) -> None:
        url = "redis+stream" + destination.url.removeprefix(SCHEME)
        self._busy = False
        self._stream = RedisStreamPublisher(destination.model_copy(update={"url": url}), settings)

    def publish(self, messages: Sequence[LeasedMessage]) -> list[Outcome]:
        """Do as each payload says; send the others."""
        if self._busy:
            raise RuntimeError("somebody else uses this publisher")
        self._busy = True
        try:
            return self._publish(messages)
        finally:
            self._busy = False

    def _publish(self, messages: Sequence[LeasedMessage]) -> list[Outcome]:
        told = [self._told(message) for message in messages]
        sent = iter(self._stream.publish([m for m, outcome in zip(messages, told, strict=True) if outcome is None]))
        return [outcome or next(sent) for outcome in told]

    def close(self) -> None:
        self._stream.close()

    def _told(self, message: LeasedMessage) -> Outcome | None:
        order = json.loads(message.payload)
        if "die" in order:
            os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(60)
        if "garble" in order:
            # To the worker: a result that is none, and the beginning of one that never ends.
            os.write(current_process()._target.outq._writer.fileno(), pack(">icI", 1, b"\x99", 1 << 30))
        if "raise" in order:
            raise KeyError(order["raise"])
        time.sleep(order.get("nap", 0))
        if "refuse" in order:
            return Outcome.dead(order["refuse"], "as told")
        if message.attempts <= order.get("fail", 0):
            return Outcome.retry(order.get("code", "told"), "as told", retry_after=order.get("retry_after"))
        return None


def distribution(directory: Path) -> Path:
    """Make a distribution that brings the publisher; with this directory on the path it is installed."""
    info = directory / "outbox_obedient-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: outbox-obedient\nVersion: 1.0\n")
    entry = f"{SCHEME} = {__name__}:{ObedientPublisher.__name__}"
    (info / "entry_points.txt").write_text(f"[outbox_tasks.publishers]\n{entry}\n")
    return directory
