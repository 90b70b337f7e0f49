"""The URLs of Amazon's services."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from urllib.parse import parse_qs, unquote, urlsplit

from outbox_tasks.errors import ConfigurationError
from outbox_tasks.settings.destination import HIDDEN, Destination

NAME = re.compile(r"[A-Za-z0-9_-]{1,256}(?:\.fifo)?")
ARN = re.compile(rf"arn:aws[a-z-]*:(sqs|sns):([a-z0-9-]+):([0-9]{{12}}):({NAME.pattern})")


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
    rule = (
        f"it must be {service}://[key:secret@]region/{what}, or with an ARN after the region, with the options "
        "endpoint, session_token, profile; key, secret and token percent-encoded"
    )
    wrong = ConfigurationError(setting=f"destinations.{destination.name}.url", value=HIDDEN, rule=rule)
    try:
        parts = urlsplit(destination.url)
        options = {name: values[-1] for name, values in parse_qs(parts.query, strict_parsing=bool(parts.query)).items()}
        endpoint = options.pop("endpoint", None)
        at = urlsplit(endpoint or "")
        region, port = parts.hostname or "", (parts.port, at.port)
    except ValueError:
        raise wrong from None
    arn = ARN.fullmatch(path) if (path := unquote(parts.path.strip("/"))).startswith("arn:") else None
    account, _, name = path.rpartition("/") if arn is None else (arn[3], "", arn[4])
    credentials = {
        "aws_session_token": options.pop("session_token", None),
        "profile_name": options.pop("profile", None),
    }
    if parts.username is not None:
        credentials |= {
            "aws_access_key_id": unquote(parts.username),
            "aws_secret_access_key": unquote(parts.password or ""),
        }
    if (
        options
        or port[0] is not None
        or not re.fullmatch(r"[a-z0-9-]+", region)
        or not NAME.fullmatch(name)
        or not re.fullmatch(r"[0-9]{12}" if account or service == "sns" else "", account)
        or (arn is not None and (arn[1], arn[2]) != (service, region))
        or (endpoint is not None and (at.scheme not in ("http", "https") or not at.hostname or "@" in at.netloc))
        or not all(credentials.get(part, "set") for part in ("aws_access_key_id", "aws_secret_access_key"))
        or (credentials["aws_session_token"] and "aws_access_key_id" not in credentials)
    ):
        raise wrong
    return Address(region, name, account or None, arn and arn[0], endpoint, credentials)
