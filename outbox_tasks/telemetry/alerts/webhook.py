"""The text of an alert, and the webhook that it is posted to."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import UTC
from typing import Any

from outbox_tasks.errors import AlertsNotInstalled, ConfigurationError, WebhookFailed
from outbox_tasks.settings import Settings
from outbox_tasks.settings.destination import HIDDEN
from outbox_tasks.text import moment, one_line, redacted, span, without_secrets

TIMEOUT = 5.0
"""Seconds for connecting, and for each read and write."""

ANSWER = 200
"""Bytes of an answer that we quote."""

OVER = {
    "breaker": "{destination} is in reach again, after {lasted}",
    "stale": "{destination} is not stale any more, after {lasted}",
    "late": "Claims end in time again, after {lasted}",
    "feed": "The feed {destination} is in order again, after {lasted}",
    "dead_letter": "The dead letters of {destination} ({code}) are seen to",
    "key_blocked": "No key of {destination} is held up any more",
}
GOING_ON = {
    "breaker": "{destination} is out of reach ({code}): its circuit is open, but for a try now and then",
    "stale": "{destination} is stale: its oldest message has been due for {waited}",
    "late": "Claims time out, so messages wait: `outbox-tasks doctor` names the session that slows them down",
    "feed": "{why}",
    "dead_letter": "{destination}: {number} dead ({code}). The latest is {event_type} {message_id}",
    "key_blocked": "{destination}: a dead message holds up {blocked}. `outbox-tasks keys` lists them",
}


def as_json(row: Any, source: str) -> dict[str, Any]:
    """An alert as it is logged and posted: `text` for people, the rest for programs. Times are in UTC."""
    facts = {
        "text": f"{text(row)} [{source}]",
        "kind": row.kind,
        "state": "over" if row.over_at else "open",
        "destination": row.destination,
        "count": row.told,
        "total": row.count,
        "since": row.first_at.astimezone(UTC).isoformat(),
        "at": (row.over_at or row.last_at).astimezone(UTC).isoformat(),
        "name": row.name,
        "source": source,
    }
    return {name: value for name, value in {**row.facts, **facts}.items() if value is not None}


def test(source: str) -> dict[str, Any]:
    """An alert that tests whether alerts arrive."""
    text = f"A test: the alerts of outbox_tasks arrive here [{source}]"
    return {"text": text, "kind": "test", "state": "open", "source": source}


def text(row: Any, *, listed: bool = False) -> str:
    """An alert in a sentence. It tells what happened since the last one; `listed`: since it began."""
    told = row.count if listed else row.told
    keys = row.facts.get("keys") or []
    facts = {
        **dict.fromkeys(("code", "event_type", "message_id", "why"), "?"),
        **row.facts,
        "destination": row.destination,
        "number": f"{told:,} message{'s are' if told != 1 else ' is'}",
        "lasted": span((row.last_at - row.first_at).total_seconds()),
        "waited": span(row.facts.get("oldest", 0.0)),
        "blocked": f"the key{'s' if told > 1 else ''} {', '.join(keys)}" + _more(told - len(keys)),
    }
    sentence = one_line((OVER if row.over_at else GOING_ON)[row.kind].format_map(facts))
    again = row.first_at < row.told_at and not row.over_at
    if listed or not again:
        return sentence
    times = "" if row.kind in ("stale", "late", "feed") else f", {row.count:,} in all"
    return f"{sentence} (since {moment(row.first_at)}{times})"


def _more(number: int) -> str:
    return f" and {number:,} more" if number > 0 else ""


def check(settings: Settings) -> None:
    """Raises `AlertsNotInstalled` or `ConfigurationError` if alerts can't be posted as the settings say."""
    if settings.alert_webhook is None:
        return
    try:
        import httpx
    except ModuleNotFoundError as error:
        raise AlertsNotInstalled(missing=error.name) from error
    try:
        good = httpx.URL(settings.alert_webhook).scheme in ("http", "https")
    except httpx.InvalidURL:
        good = False
    if not good:
        raise ConfigurationError(setting="alert_webhook", value=HIDDEN, rule="it must be an http:// or https:// URL")


def post(url: str, alert: Mapping[str, Any]) -> str:
    """Post an alert. Returns the status of the answer. Raises `WebhookFailed`."""
    import httpx

    client_log = logging.getLogger("httpx")
    unlogged = _WithoutUrl(str(httpx.URL(url)))
    client_log.addFilter(unlogged)
    try:
        with httpx.Client(timeout=TIMEOUT) as client, client.stream("POST", url, json=alert) as answer:
            if answer.is_success:
                return f"HTTP {answer.status_code}"
            body = next(answer.iter_bytes(ANSWER), b"").decode(errors="replace")
            reason = " ".join(f"HTTP {answer.status_code} {without_secrets(body, url)}".split())
            raise WebhookFailed(place=redacted(url), reason=reason)
    except httpx.HTTPError as error:
        reason = without_secrets(str(error), url) or type(error).__name__
        raise WebhookFailed(place=redacted(url), reason=reason) from None
    finally:
        client_log.removeFilter(unlogged)


class _WithoutUrl(logging.Filter):
    """Drops what httpx logs of a request: it has the whole URL, which is a secret."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self._url = url

    def filter(self, record: logging.LogRecord) -> bool:
        return self._url not in record.getMessage()
