"""Who may send to the server `service_bus.py`: a shared access signature made with its key, or its token, says so."""

from __future__ import annotations

import base64
import hashlib
import hmac
import time
from typing import Any
from urllib.parse import parse_qsl, unquote_plus

POLICY, KEY = "teller", "c2VjcmV0/with+signs="
TOKEN = "header.payload.signature"
"""One that Microsoft Entra would have issued."""


def accepted(token: Any, audience: str) -> bool:
    return token == TOKEN or signed(token, audience)


def signed(token: Any, audience: str) -> bool:
    """Whether this is a shared access signature for the audience, made with our key, and not too old."""
    kind, _, rest = str(token).partition(" ")
    raw = dict(pair.split("=", 1) for pair in rest.split("&") if "=" in pair)
    told = dict(parse_qsl(rest))
    if kind != "SharedAccessSignature" or told.keys() < {"sr", "sig", "se", "skn"} or told["skn"] != POLICY:
        return False
    digest = hmac.new(KEY.encode(), f"{raw['sr']}\n{raw['se']}".encode(), hashlib.sha256).digest()
    right = base64.b64encode(digest).decode()
    covered = audience.lower().startswith(unquote_plus(raw["sr"]).lower())
    return hmac.compare_digest(right, told["sig"]) and covered and int(told["se"]) > time.time()
