"""Every number in the settings has bounds that the database, Celery and the clocks can take."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, get_args

import annotated_types
import pytest
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from outbox_tasks.errors import ConfigurationError
from outbox_tasks.feeds.place import FeedPlace
from outbox_tasks.settings import Settings
from outbox_tasks.settings.destination import Destination

INT32 = 2**31 - 1
AGES = {"max_age", "confirm_within", "inbox_retention", "archive_retention", "stale_after"}
"""These are compared with dates. A process waits for all other times."""


def parts(annotation: Any) -> Iterator[Any]:
    """An annotation and its parts."""
    yield annotation
    for part in get_args(annotation):
        yield from parts(part)


def models(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    """A model of the settings and the models in it."""
    yield model
    for field in model.model_fields.values():
        for part in parts(field.annotation):
            if isinstance(part, type) and issubclass(part, BaseModel):
                yield from models(part)


def numbers(model: type[BaseModel]) -> dict[str, FieldInfo]:
    return {
        name: field
        for name, field in model.model_fields.items()
        if any(part in (int, float) for part in parts(field.annotation))
    }


def bounds(field: FieldInfo) -> tuple[float | None, float | None]:
    """The least and the most that a field takes; None if it does not say."""
    said = [*field.metadata, *parts(field.annotation)]
    rules = [rule for part in said for rule in (part.metadata if isinstance(part, FieldInfo) else [part])]
    least = [rule.ge for rule in rules if isinstance(rule, annotated_types.Ge)]
    most = [rule.le for rule in rules if isinstance(rule, annotated_types.Le)]
    return (least or [None])[0], (most or [None])[0]  # type: ignore[return-value]


FOUND = [(model, name, field) for model in models(Settings) for name, field in numbers(model).items()]


def made(model: type[BaseModel], name: str, value: float) -> Any:
    if model is Destination:
        return Settings(destinations={"orders": {"url": "a://b", name: value}})
    if model is FeedPlace:
        return Settings(feeds={"orders": {"url": "sqlite:////a.db", name: value}})
    assert model is Settings
    return Settings(**{name: value})


def test_an_unusable_number_is_refused_by_name() -> None:
    where = {Settings: "", Destination: "destinations.orders.", FeedPlace: "feeds.orders."}
    assert {"singles", "queue_lease", "archive_retention", "rate_limit"} <= {name for _, name, _ in FOUND}
    for model, name, field in FOUND:
        least, most = bounds(field)
        assert least is not None, f"{model.__name__}.{name} has no bounds: use a type of settings/destination.py"
        assert most is not None, f"{model.__name__}.{name} has no bounds: use a type of settings/destination.py"
        for wrong in (float("inf"), float("-inf"), float("nan"), int(least) - 1, int(most) + 1):
            with pytest.raises(ConfigurationError) as caught:
                made(model, name, wrong)
            assert caught.value.setting == where[model] + name


def test_the_largest_number_is_not_too_large_for_dates_and_waits() -> None:
    for _, name, field in FOUND:
        _, most = bounds(field)
        assert most is not None
        if name in AGES:  # several of them added up are still a date
            assert datetime.now(UTC) - 3 * timedelta(seconds=most)
            assert datetime.now(UTC) + 3 * timedelta(seconds=most)
        elif float in parts(field.annotation) and name != "rate_limit":
            assert 2 * most * 1000 <= INT32, f"milliseconds of {name}"
        else:
            assert 2 * most <= INT32, name


def test_attempts_can_be_counted_in_a_smallint() -> None:
    """And a few more: a send that was lost counts too."""
    _, most = bounds(Destination.model_fields["max_attempts"])
    assert most is not None
    assert most + 100 <= INT32 >> 16


@pytest.mark.parametrize("name", ["statement_timeout", "archive_retention"])
def test_0_is_taken_and_almost_0_is_refused(name: str) -> None:
    assert getattr(Settings(**{name: 0}), name) == 0
    with pytest.raises(ConfigurationError, match=r"must be 0, or at least 0\.001"):
        Settings(**{name: 0.0001})
