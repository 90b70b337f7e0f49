"""A feed as it is configured: an application's own database, from which the relay copies messages."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from outbox_tasks.settings.destination import Route, Url


class FeedPlace(BaseModel):
    """Where a feed is."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    url: Url = Field(repr=False)
    """The application's database: mysql://…, mariadb://…, postgresql://… or sqlite:////path/of/the.db"""
    url_schema: str | None = Field(default=None, alias="schema", pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,62}$")
    """The schema of its tables; none: where the connection finds them."""
    routes: dict[str, Route] = Field(default_factory=dict)
    """Routes for this feed alone. They count before the others."""


LIST = "list"
"""The name in `[feeds]` that is no feed's: a query for more feeds."""
