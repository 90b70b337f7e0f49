"""The page: what people look at, and act on, in a browser.

It is a Starlette application. Each page is a plain function that makes a response of a visit; `routes` lists all of
them. `page` knows who visits, checks what they may do, and answers trouble with words. Servers come in through `mount`.
"""

from outbox_tasks.errors import NotInstalled

try:
    from outbox_tasks.web.access import Person, Role
    from outbox_tasks.web.page import Page
except ModuleNotFoundError as error:
    if (error.name or "").startswith("outbox_tasks"):
        raise
    raise NotInstalled(what="The page", missing=error, packages="'outbox-tasks[web]'") from None

__all__ = ["Page", "Person", "Role"]
