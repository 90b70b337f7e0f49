"""Feeds as they are configured: applications' own databases, from which the relay copies messages."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from outbox_tasks.errors import ConfigurationError
from outbox_tasks.settings import Settings
from outbox_tasks.settings.destination import HIDDEN, Route, Url
from outbox_tasks.settings.sources import first_problem

LIST = "list"
"""The name in `[feeds]` that is no feed's: a query for more feeds."""


class FeedPlace(BaseModel):
    """Where a feed is."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    url: Url = Field(repr=False)
    """The application's database: mysql://…, mariadb://…, postgresql://… or sqlite:////path/of/the.db"""
    url_schema: str | None = Field(default=None, alias="schema", pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,62}$")
    """The schema of its tables; none: where the connection finds them."""
    routes: dict[str, Route] = Field(default_factory=dict)
    """Routes for this feed alone. They count before the others."""


class _Feeds(BaseModel):
    """The table `[feeds]`."""

    feeds: dict[str, FeedPlace | str] = Field(repr=False)


def check_settings(settings: Settings) -> None:
    """Convert the feeds of the settings to places. Raises `ConfigurationError`."""
    try:
        settings.feeds.update(_Feeds.model_validate({"feeds": settings.feeds}).feeds)
    except ValidationError as error:
        raise first_problem(error, _Feeds.model_fields, {"feeds": FeedPlace}) from None
    names: dict[tuple[str, str | None], str] = {}
    for name, place in settings.feeds.items():
        if isinstance(place, str) is not (name == LIST):
            rule = "it must be a query" if name == LIST else "it must be a table with a url"
            raise ConfigurationError(setting=f"feeds.{name}", value=HIDDEN, rule=rule)
        if isinstance(place, FeedPlace):
            other = names.setdefault((place.url, place.url_schema), name)
            if other != name:
                rule = f"it is the source of feeds.{other} too: each would copy every row"
                raise ConfigurationError(setting=f"feeds.{name}.url", value=HIDDEN, rule=rule)
            settings.check_routes(f"feeds.{name}.", place.routes)


def place_of(settings: Settings, name: str) -> FeedPlace | None:
    """A feed by its name; None: it is not in the settings, but perhaps the query for feeds knows it."""
    place = settings.feeds.get(name)
    return place if isinstance(place, FeedPlace) else None


def with_routes_of(settings: Settings, name: str) -> Settings:
    """These settings with the routes of a feed."""
    place = place_of(settings, name)
    if place is None or not place.routes:
        return settings
    others = {pattern: route for pattern, route in settings.routes.items() if pattern not in place.routes}
    return settings.model_copy(update={"routes": {**place.routes, **others}})
