"""The page: what people look at, and act on, in a browser.

It is a Starlette application. Each page is a plain function that makes a response of a visit; `routes` lists all of
them. `page` knows who visits, checks what they may do, and answers trouble with words. Servers come in through `mount`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from outbox_tasks.errors import NotInstalled

if TYPE_CHECKING:
    from outbox_tasks.web.access import Person, Role
    from outbox_tasks.web.page import Page

__all__ = ["Page", "Person", "Role"]


def __getattr__(name: str) -> Any:
    """Loaded when first asked for: most processes show no page, and its packages may be missing."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module("outbox_tasks.web.page" if name == "Page" else "outbox_tasks.web.access"), name)
    except ModuleNotFoundError as error:
        raise NotInstalled(what="The page", missing=error, packages="'outbox-tasks[web]'") from None
