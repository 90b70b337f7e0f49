"""What the URL of a webhook destination says: the endpoint's part of it, and ours, whose names begin with `outbox_`."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import time
from typing import NamedTuple
from urllib.parse import unquote

import httpx

from outbox_tasks.destinations.common import options
from outbox_tasks.settings.destination import Destination

Headers = list[tuple[bytes, bytes]]


class Options(NamedTuple):
    url: httpx.URL
    secrets: list[bytes]
    authorization: str | None
    private: bool
    concurrency: int
    hidden: list[str]
    """What no error text may show, the longest first."""

    def signature(self, message_id: str, body: bytes) -> Headers:
        """Standard Webhooks: one signature for each secret, so that one can be replaced by another."""
        if not self.secrets:
            return []
        moment = b"%d" % time.time()
        signed = b"%s.%s.%s" % (message_id.encode(), moment, body)
        digests = [base64.b64encode(hmac.new(secret, signed, hashlib.sha256).digest()) for secret in self.secrets]
        return [
            (b"webhook-id", message_id.encode()),
            (b"webhook-timestamp", moment),
            (b"webhook-signature", b" ".join(b"v1," + digest for digest in digests)),
        ]


def _secret(value: str) -> bytes:
    secret = base64.b64decode(value.removeprefix("whsec_"), validate=True)
    if not secret:
        raise ValueError
    return secret


PREFIX = "outbox_"
TOKEN = re.compile(r"[\x21-\x7e]+")
OPTIONS: options.Options = {
    "outbox_secret": options.Kind("base64, as in whsec_…", options.TEXT.pattern, _secret, several=True),
    "outbox_bearer": options.Kind("a token of ASCII characters", TOKEN),
    "outbox_private": options.one_of("allow"),
    "outbox_concurrency": options.number(1, 100),
}


def read(destination: Destination) -> Options:
    base, _, query = destination.url.partition("?")
    rest = "&".join(pair for pair in query.split("&") if pair and not pair.startswith(PREFIX))
    try:
        url = httpx.URL(f"{base}?{rest}" if rest else base)
    except (httpx.InvalidURL, ValueError):
        raise destination.unusable("it must be a URL, as in https://shop.example/hooks") from None
    own = options.read(destination, OPTIONS, prefix=PREFIX)
    bearer = own.get("outbox_bearer")
    options.check(
        destination,
        (
            url.raw_host and b"%" not in url.raw_host and "#" not in destination.url,
            "it must have a host and no fragment, as in https://shop.example/hooks",
        ),
        (
            sum(map(bool, (url.userinfo, bearer, destination.password))) < 2,
            "it has one of a user, outbox_bearer and password",
        ),
    )
    basic = base64.b64encode(f"{url.username}:{url.password}".encode()).decode() if url.userinfo else ""
    secrets = {value for name, value in destination.options if name == "outbox_secret"}
    login = {basic, url.password or url.username, bearer or "", *secrets} - {""}
    # The endpoint's part may hold a token anywhere. What is as long as tokens is hidden, in whole and in its parts.
    path = url.raw_path.decode().partition("?")[0].strip("/")
    parts = {rest, path, *path.split("/"), *(pair.partition("=")[2] for pair in rest.split("&"))}
    hidden = login | {text for part in parts for text in (part, unquote(part)) if len(text) > 7}
    return Options(
        url,
        own.get("outbox_secret", []),
        f"Bearer {bearer}" if bearer else f"Basic {basic}" if basic else None,
        "outbox_private" in own,
        own.get("outbox_concurrency", 10),
        sorted(hidden, key=len, reverse=True),
    )
