"""The settings of the page."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

SHORTEST_PASSWORD = 12

WEB_PORT = 8089
"""The port of `outbox-tasks web`, if nobody names another one."""


def _is_name(name: str) -> str:
    if not 1 <= len(name) <= 100 or ":" in name or not name.isprintable():
        raise ValueError("a name has 1 to 100 characters that can be printed, without a colon")
    return name


def _is_web(url: str) -> str:
    if not url.startswith(("https://", "http://")):
        raise ValueError("it must be a URL such as https://flower.example.com")
    return url


def _is_trace(url: str) -> str:
    if "{trace_id}" not in url:
        raise ValueError("it must hold {trace_id}, such as https://traces.example.com/trace/{trace_id}")
    return url


class WebUser(BaseModel):
    """Somebody who may sign in: one `[web_users.<name>]` table of `outbox.toml`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    password: str = Field(min_length=SHORTEST_PASSWORD, max_length=1000, repr=False)
    role: Literal["look", "payload", "act"] = "look"
    """What they may do. Each role includes those before it: look at everything but the contents of messages, see
    payloads and headers, act."""


class WebSettings(BaseModel):
    """A part of `Settings`: the page."""

    web_users: dict[Annotated[str, AfterValidator(_is_name)], WebUser] = Field(default_factory=dict, repr=False)
    """Who may sign in to the page, by name, if no application says who visits: a `password` of at least 12 characters,
    and a `role`: look, payload or act."""
    web_flower_url: Annotated[str, AfterValidator(_is_web)] | None = None
    """Where Flower is, for links from the page: https://flower.example.com."""
    web_trace_url: Annotated[str, AfterValidator(_is_web), AfterValidator(_is_trace)] | None = None
    """Where a trace is shown, for links from the page: https://traces.example.com/trace/{trace_id}."""
