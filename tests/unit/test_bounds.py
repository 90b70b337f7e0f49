"""Every number in the settings has bounds that the database, Celery and the clocks can take."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import pytest

from outbox_tasks.errors import ConfigurationError
from outbox_tasks.settings import Settings

INT32 = 2**31 - 1
AGES = {"max_age", "confirm_within", "inbox_retention", "archive_retention", "stale_after"}
"""These are compared with dates. A process waits for all other times."""


class Number(NamedTuple):
    """A setting, of a destination if `where` is not empty, and the bounds that it declares."""

    where: str
    name: str
    whole: bool
    least: float | None
    most: float | None


def numbers(schema: dict[str, Any], where: str) -> list[Number]:
    return [
        Number(where, name, kind["type"] == "integer", kind.get("minimum"), kind.get("maximum"))
        for name, field in schema["properties"].items()
        for kind in (field, *field.get("anyOf", ()))
        if kind.get("type") in ("number", "integer")
    ]


SCHEMA = Settings.model_json_schema()
NUMBERS = numbers(SCHEMA, "") + numbers(SCHEMA["$defs"]["Destination"], "destinations.orders.")


def test_an_unusable_number_is_refused_by_name() -> None:
    assert {"singles", "queue_lease", "archive_retention", "rate_limit"} <= {number.name for number in NUMBERS}
    for where, name, _, least, most in NUMBERS:
        assert least is not None, f"{where}{name} has no bounds: use a type of settings/destination.py"
        assert most is not None, f"{where}{name} has no bounds: use a type of settings/destination.py"
        for wrong in (float("inf"), float("-inf"), float("nan"), int(least) - 1, int(most) + 1):
            value: Any = {name: wrong}
            with pytest.raises(ConfigurationError) as caught:
                Settings(**({"destinations": {"orders": {"url": "a://b", **value}}} if where else value))
            assert caught.value.setting == where + name


def test_the_largest_number_is_not_too_large_for_dates_and_waits() -> None:
    for _, name, whole, _, most in NUMBERS:
        assert most is not None
        if name in AGES:  # several of them added up are still a date
            assert datetime.now(UTC) - 3 * timedelta(seconds=most)
            assert datetime.now(UTC) + 3 * timedelta(seconds=most)
        elif whole or name == "rate_limit":
            assert 2 * most <= INT32, name
        else:
            assert 2 * most * 1000 <= INT32, f"milliseconds of {name}"


def test_attempts_can_be_counted_in_a_smallint() -> None:
    """And a few more: a send that was lost counts too."""
    [most] = [number.most for number in NUMBERS if number.name == "max_attempts"]
    assert most is not None
    assert most + 100 <= INT32 >> 16


@pytest.mark.parametrize("name", ["statement_timeout", "archive_retention"])
def test_0_is_taken_and_almost_0_is_refused(name: str) -> None:
    assert getattr(Settings(**{name: 0}), name) == 0
    with pytest.raises(ConfigurationError, match=r"must be 0, or at least 0\.001"):
        Settings(**{name: 0.0001})
