"""Google Cloud Pub/Sub, without ordering keys."""

from __future__ import annotations

from typing import ClassVar

from tests.contract.counterparts.pubsub import PubSubCounterpart


class Counterpart(PubSubCounterpart):
    name: ClassVar[str] = "pubsub-unordered"
    options: ClassVar[str] = "&ordering=none"
