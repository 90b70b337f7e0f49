"""What the URL of a webhook destination says: the endpoint's part of it, and ours, whose names begin with `outbox_`."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import time
from typing import NamedTuple
from urllib.parse import unquote

import httpx

from outbox_tasks.errors import ConfigurationError
from outbox_tasks.settings.destination import HIDDEN, Destination

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


def read(destination: Destination) -> Options:
    base, _, query = destination.url.partition("?")
    pairs = [pair for pair in query.split("&") if pair]
    own: dict[str, list[str]] = {}
    for pair in pairs:
        name, _, value = pair.partition("=")
        if name.startswith("outbox_"):
            own.setdefault(name, []).append(unquote(value))  # a plus is a plus, as in base64
    rest = "&".join(pair for pair in pairs if not pair.startswith("outbox_"))
    try:
        url = httpx.URL(f"{base}?{rest}" if rest else base)
        secrets = [_secret(value) for value in own.get("outbox_secret", [])]
    except (httpx.InvalidURL, ValueError):
        raise _unusable(destination, "it must be a URL, and outbox_secret base64 as in whsec_…") from None
    private, concurrency = own.pop("outbox_private", []), own.pop("outbox_concurrency", ["10"])
    bearer = own.pop("outbox_bearer", [])
    if own.keys() - {"outbox_secret"} or len(bearer) > 1 or private not in ([], ["allow"]) or len(concurrency) > 1:
        rule = "its options are outbox_secret (several for rotation), outbox_bearer, outbox_private=allow and "
        raise _unusable(destination, rule + "outbox_concurrency=<connections>")
    if not re.fullmatch(r"[1-9][0-9]?|100", concurrency[0]):
        raise _unusable(destination, "outbox_concurrency must be 1 to 100")
    if not url.raw_host or b"%" in url.raw_host or "#" in destination.url:
        raise _unusable(destination, "it must have a host and no fragment, as in https://shop.example/hooks")
    if bearer and (url.userinfo or not re.fullmatch(r"[\x21-\x7e]+", bearer[0])):
        raise _unusable(destination, "outbox_bearer must be a token of ASCII characters, without a user in the URL")
    basic = base64.b64encode(f"{url.username}:{url.password}".encode()).decode() if url.userinfo else ""
    authorization = f"Bearer {bearer[0]}" if bearer else f"Basic {basic}" if basic else None
    # The endpoint's part may hold a token anywhere; of its values, those as long as tokens are.
    values = {value for pair in rest.split("&") if len(value := unquote(pair.partition("=")[2])) > 7}
    login = {basic, url.password or url.username, *bearer, *own.get("outbox_secret", [])}
    hidden = {*login, *values, rest, url.raw_path.decode()} - {"", "/"}
    shown = sorted(hidden, key=len, reverse=True)
    return Options(url, secrets, authorization, bool(private), int(concurrency[0]), shown)


def _secret(value: str) -> bytes:
    secret = base64.b64decode(value.removeprefix("whsec_"), validate=True)
    if not secret:
        raise binascii.Error("it is empty")
    return secret


def _unusable(destination: Destination, rule: str) -> ConfigurationError:
    return ConfigurationError(setting=f"destinations.{destination.name}.url", value=HIDDEN, rule=rule)
