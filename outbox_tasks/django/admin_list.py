"""A page of messages in Django's admin: what its filters and its search want, found as on the outbox's own page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from uuid import UUID

from django.contrib import admin, messages
from django.contrib.admin.views.main import PAGE_VAR, ChangeList

from outbox_tasks.errors import DatabaseTooSlow, InvalidFilter, UnknownMessage
from outbox_tasks.operating.messages import filters
from outbox_tasks.operating.messages.find import DEAD, STATES, Lookup
from outbox_tasks.operating.messages.paging import Cursor, Page, read_page
from outbox_tasks.text import moment, one_line

PATIENCE = 2.0
"""Seconds that a statement of a search may run."""

LOOK = 1_000
"""Dead letters whose error codes are offered as a filter: the last ones."""


class _Choice(admin.SimpleListFilter):
    """A filter that the list asks for its value."""

    def lookups(self, request: Any, model_admin: Any) -> list[tuple[str, str]]:
        return [(value, text) for value, text in self.offered(request) if value]

    def queryset(self, request: Any, queryset: Any) -> None:
        return None


class Destination(_Choice):
    title = parameter_name = "destination"

    def offered(self, request: Any) -> Iterator[tuple[str, str]]:
        return ((name, name) for name in request.outbox.settings.destinations)


class State(_Choice):
    title = parameter_name = "state"

    def offered(self, request: Any) -> Iterator[tuple[str, str]]:
        return ((state, state) for state in STATES)

    def choices(self, changelist: Any) -> Iterator[dict[str, Any]]:
        everything, *others = super().choices(changelist)
        yield {**everything, "display": "All at work"}
        yield from others


class ErrorCode(_Choice):
    title, parameter_name = "error code", "error"

    def offered(self, request: Any) -> Iterator[tuple[str, str]]:
        codes, complete = Lookup(request.outbox).codes(LOOK)
        return ((code, f"{one_line(code)} ({count:,}{'' if complete else '+'} dead)") for code, count in codes.items())


class MessageList(ChangeList):
    """A page of messages, as the filters and the search want them."""

    first = newer = older = reached = None

    def get_results(self, request: Any) -> None:
        page = Page()
        try:
            page = self._page(request)
        except (InvalidFilter, DatabaseTooSlow, ValueError) as error:
            messages.error(request, str(error))
        self.result_list = [shown(self.model, row) for row in page.messages]
        self.result_count = self.full_result_count = len(self.result_list)
        self.show_full_result_count, self.show_admin_actions = False, True
        self.can_show_all = self.multi_page = False
        self.paginator = self.model_admin.get_paginator(request, self.result_list, self.list_per_page)
        self.first = self.get_query_string() if page.newer else None
        self.newer, self.older = (self._at(cursor) for cursor in (page.newer, page.older))
        self.reached = None if page.complete or page.reached is None else moment(page.reached)

    def _page(self, request: Any) -> Page:
        word = self.query.strip()
        given = {each.parameter_name: [each.value() or ""] for each in self.filter_specs}
        wanted = filters.asked({"state": self.model_admin.states, **{name: v for name, v in given.items() if v[0]}})
        try:
            one = Lookup(request.outbox).one(UUID(word), 0)
        except UnknownMessage:
            return Page()
        except ValueError:
            if word:
                wanted = filters.asked({**filters.query_of(wanted), "key": [word]})
            at = Cursor.parse(request.GET[PAGE_VAR]) if "~" in request.GET.get(PAGE_VAR, "") else None
            return read_page(request.outbox, wanted, self.list_per_page, at, limit=PATIENCE)
        dead_alone = self.model_admin.states == (DEAD,)
        return Page([one] if one["state"] == DEAD or not dead_alone else [])

    def _at(self, cursor: Cursor | None) -> Any:
        return cursor and self.get_query_string({PAGE_VAR: str(cursor)})


def shown(model: Any, row: Mapping[str, Any]) -> Any:
    """A message whose texts have no characters that hide or turn what stands beside them."""
    values = {field.attname: row.get(field.attname) for field in model._meta.concrete_fields}
    return model(**{name: one_line(value) if isinstance(value, str) else value for name, value in values.items()})
