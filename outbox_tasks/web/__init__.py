"""The page: what people look at, and act on, in a browser.

A page is a plain function that makes a response of a visit. `Answers` knows who visits, checks what they may do, and
answers trouble with words. `asgi` and `wsgi` are thin adapters to it, and `Page` is what
an application mounts.
"""

from outbox_tasks.web.access import Person, Role
from outbox_tasks.web.page import Page

__all__ = ["Page", "Person", "Role"]
