"""The settings of the page."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from outbox_tasks.settings.destination import WebUrl

SHORTEST_PASSWORD = 12

WEB_PORT = 8089
"""The port of `outbox-tasks web`, if nobody names another one."""


Name = Annotated[str, Field(pattern=r"^[^:\x00-\x1f\x7f-\x9f]{1,100}$")]
"""A name with which somebody signs in: Basic authentication ends it at a colon."""
TraceUrl = Annotated[str, Field(pattern=r"^https?://.*\{trace_id\}")]


class WebUser(BaseModel):
    """Somebody who may sign in: one `[web_users.<name>]` table of `outbox.toml`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    password: str = Field(min_length=SHORTEST_PASSWORD, max_length=1000, repr=False)
    role: Literal["look", "payload", "act"] = "look"
    """What they may do. Each role includes those before it: look at everything but the contents of messages, see
    payloads and headers, act."""


class WebSettings(BaseModel):
    """A part of `Settings`: the page."""

    web_users: dict[Name, WebUser] = Field(default_factory=dict, repr=False)
    """Who may sign in to the page, by name, if no application says who visits: a `password` of at least 12 characters,
    and a `role`: look, payload or act."""
    web_flower_url: WebUrl | None = None
    """Where Flower is, for links from the page: https://flower.example.com."""
    web_trace_url: TraceUrl | None = None
    """Where a trace is shown, for links from the page: https://traces.example.com/trace/{trace_id}."""
