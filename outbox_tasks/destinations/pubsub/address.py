"""The URLs of Google Cloud Pub/Sub."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

from outbox_tasks.errors import ConfigurationError
from outbox_tasks.settings.destination import HIDDEN, Destination

OPTIONS = ("endpoint", "emulator", "credentials", "ordering")
GOOGLE = "pubsub.googleapis.com:443"

PROJECT = re.compile(r"[A-Za-z0-9][A-Za-z0-9.:_-]*")
"""Looser than Google's own rule: an emulator takes any, and Google says it of a name that can't be."""
TOPIC = re.compile(r"(?!goog)[A-Za-z][A-Za-z0-9._~+%-]{2,254}")
HOST = r"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?)"
PORT = r":[0-9]{1,5}"


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
    query = parts.query.replace("+", "%2B")  # a plus is a plus, as in a file's name
    options = {name: values[-1] for name, values in parse_qs(query, keep_blank_values=True).items()}
    project, topic = unquote(parts.netloc), unquote(parts.path.removeprefix("/")) or destination.name
    rule = _broken(parts, project, topic, options)
    if rule is not None:
        raise ConfigurationError(setting=f"destinations.{destination.name}.url", value=HIDDEN, rule=rule)
    endpoint = options.get("endpoint", GOOGLE)
    return Address(
        topic=f"projects/{project}/topics/{topic}",
        endpoint=endpoint if re.search(f"{PORT}$", endpoint) else f"{endpoint}:443",
        emulator=options.get("emulator"),
        credentials=options.get("credentials"),
        ordered=options.get("ordering", "key") == "key",
    )


def _broken(parts: SplitResult, project: str, topic: str, options: dict[str, str]) -> str | None:
    """The rule that the URL breaks."""
    credentials = options.get("credentials", "/")
    rules = [
        (PROJECT.fullmatch(project) and not parts.fragment,
         "it must be pubsub://project/topic, with credentials as a file: ?credentials=/path/to/key.json"),
        (TOPIC.fullmatch(topic),
         "a topic's name has 3 to 255 letters, digits and - . _ ~ + %, begins with a letter, and not with goog"),
        (options.keys() <= set(OPTIONS), f"the options of a pubsub:// URL are {', '.join(OPTIONS)}"),
        (re.fullmatch(f"{HOST}(?:{PORT})?", options.get("endpoint", GOOGLE)),
         "endpoint must be host or host:port, such as europe-west1-pubsub.googleapis.com"),
        (re.fullmatch(f"{HOST}{PORT}", options.get("emulator", GOOGLE)), "emulator must be host:port"),
        ("emulator" not in options or options.keys().isdisjoint({"endpoint", "credentials"}),
         "an emulator has neither endpoint nor credentials"),
        # Who has put the key itself here is to be told before it is looked for as a file.
        (credentials and credentials.isprintable() and "{" not in credentials and len(credentials) < 1024,
         "credentials must be the path of a service account's key file, not the key"),
        (options.get("ordering", "key") in ("key", "none"), "ordering is key or none"),
    ]  # fmt: skip
    return next((rule for holds, rule in rules if not holds), None)
