"""The URLs of Amazon's services."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from outbox_tasks.destinations.common import options
from outbox_tasks.settings.destination import Destination

NAME = re.compile(r"[A-Za-z0-9_-]{1,256}(?:\.fifo)?")
ARN = re.compile(rf"arn:aws[a-z-]*:(sqs|sns):([a-z0-9-]+):([0-9]{{12}}):({NAME.pattern})")

OPTIONS: options.Options = {
    "endpoint": options.matching(
        r"https?://[^/?#@:]+(:[0-9]{1,5})?(/[^?#@]*)?", "a URL such as https://sqs.example.org"
    ),
    "session_token": options.TEXT,
    "profile": options.TEXT,
}


@dataclass(frozen=True)
class Address:
    """What the URL says."""

    region: str
    name: str
    account: str | None
    arn: str | None
    endpoint: str | None
    credentials: dict[str, str | None] = field(repr=False)


def address_of(destination: Destination, service: str) -> Address:
    """The URL in its parts. Raises `ConfigurationError`."""
    what = "account/topic" if service == "sns" else "[account/]queue"
    wrong = destination.unusable(
        f"it must be {service}://[key:secret@]region/{what}, or with an ARN after the region; "
        "key and secret percent-encoded"
    )
    values = options.read(destination, OPTIONS)
    try:
        parts = urlsplit(destination.url)
        region, port = parts.hostname or "", parts.port
    except ValueError:
        raise wrong from None
    arn = ARN.fullmatch(path) if (path := unquote(parts.path.strip("/"))).startswith("arn:") else None
    account, _, name = path.rpartition("/") if arn is None else (arn[3], "", arn[4])
    credentials: dict[str, str | None] = {
        "aws_session_token": values.get("session_token"),
        "profile_name": values.get("profile"),
    }
    if parts.username is not None:
        credentials |= {
            "aws_access_key_id": unquote(parts.username),
            "aws_secret_access_key": unquote(parts.password or ""),
        }
    if (
        port is not None
        or not re.fullmatch(r"[a-z0-9-]+", region)
        or not NAME.fullmatch(name)
        or not re.fullmatch(r"[0-9]{12}" if account or service == "sns" else "", account)
        or (arn is not None and (arn[1], arn[2]) != (service, region))
        or not all(credentials.get(part, "set") for part in ("aws_access_key_id", "aws_secret_access_key"))
        or (credentials["aws_session_token"] and "aws_access_key_id" not in credentials)
    ):
        raise wrong
    return Address(region, name, account or None, arn and arn[0], values.get("endpoint"), credentials)
