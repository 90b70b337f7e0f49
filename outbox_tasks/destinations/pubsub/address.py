"""The URLs of Google Cloud Pub/Sub."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from outbox_tasks.destinations.common import options
from outbox_tasks.settings.destination import Destination

GOOGLE = "pubsub.googleapis.com:443"

PROJECT = re.compile(r"[A-Za-z0-9][A-Za-z0-9.:_-]*")
"""Looser than Google's rule, because an emulator takes any name. Google itself refuses a name that breaks its rule."""
TOPIC = re.compile(r"(?!goog)[A-Za-z][A-Za-z0-9._~+%-]{2,254}")
HOST = r"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?)"
PORT = r":[0-9]{1,5}"

OPTIONS: options.Options = {
    "endpoint": options.matching(f"{HOST}(?:{PORT})?", "host or host:port, as in europe-west1-pubsub.googleapis.com"),
    "emulator": options.matching(f"{HOST}{PORT}", "host:port"),
    # Somebody may have put the key itself here. Then refuse it here, before anything looks for a file of that name.
    "credentials": options.matching(r"[^{\x00-\x1f\x7f]{1,1023}", "the path of a key file, not the key"),
    "ordering": options.one_of("key", "none"),
}


@dataclass(frozen=True)
class Address:
    """What the URL says."""

    topic: str
    """By its full name, `projects/…/topics/…`."""
    endpoint: str
    emulator: str | None
    credentials: str | None
    """A file."""
    ordered: bool
    """Whether keys become ordering keys."""


def address_of(destination: Destination) -> Address:
    """The URL in its parts. Raises `ConfigurationError`."""
    parts = urlsplit(destination.url)
    project, topic = unquote(parts.netloc), unquote(parts.path.removeprefix("/")) or destination.name
    values = options.read(destination, OPTIONS)
    options.check(
        destination,
        (
            PROJECT.fullmatch(project) and not parts.fragment,
            "it must be pubsub://project/topic, with credentials as a file: ?credentials=/path/to/key.json",
        ),
        (
            TOPIC.fullmatch(topic),
            "a topic's name has 3 to 255 letters, digits and - . _ ~ + %, begins with a letter, and not with goog",
        ),
        (
            "emulator" not in values or values.keys().isdisjoint({"endpoint", "credentials"}),
            "an emulator has neither endpoint nor credentials",
        ),
    )
    endpoint = values.get("endpoint", GOOGLE)
    return Address(
        topic=f"projects/{project}/topics/{topic}",
        endpoint=endpoint if re.search(f"{PORT}$", endpoint) else f"{endpoint}:443",
        emulator=values.get("emulator"),
        credentials=values.get("credentials"),
        ordered=values.get("ordering") != "none",
    )
