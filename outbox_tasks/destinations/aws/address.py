"""The URLs of Amazon's services."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from outbox_tasks.destinations.common import options
from outbox_tasks.settings.destination import Destination

OPTIONS: options.Options = {
    "endpoint": options.matching(
        r"https?://[^/?#@:]+(:[0-9]{1,5})?(/[^?#@]*)?", "a URL such as https://sqs.example.org"
    ),
}


@dataclass(frozen=True)
class Address:
    """What the URL says."""

    region: str
    name: str
    account: str
    endpoint: str | None
    login: tuple[str, str] | None = field(repr=False)


def address_of(destination: Destination, service: str) -> Address:
    """The URL in its parts. Raises `ConfigurationError`."""
    rule = f"it must be {service}://[key:secret@]region/account/name, with key and secret percent-encoded"
    wrong = destination.unusable(rule)
    values = options.read(destination, OPTIONS)
    try:
        parts = urlsplit(destination.url)
        region, port = parts.hostname or "", parts.port
    except ValueError:
        raise wrong from None
    account, _, name = unquote(parts.path.strip("/")).rpartition("/")
    login = None if parts.username is None else (unquote(parts.username), unquote(parts.password or ""))
    if (
        port is not None
        or not re.fullmatch(r"[a-z0-9-]+", region)
        or not re.fullmatch(r"[A-Za-z0-9_-]{1,256}(?:\.fifo)?", name)
        or not re.fullmatch(r"[0-9]{12}", account)
        or (login is not None and not all(login))
    ):
        raise wrong
    return Address(region, name, account, values.get("endpoint"), login)
