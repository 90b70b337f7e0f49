"""Messages and dead letters in Django's admin: to look at, and for those who may act, to redrive and to discard.

The lists are read as those of the page are: a page at a time, by an index. Nothing here counts or sorts a whole table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from typing import Any
from uuid import UUID

from django import forms
from django.contrib import admin, messages
from django.contrib.admin import options
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME, ActionForm
from django.contrib.admin.views.main import ChangeList
from django.shortcuts import redirect
from django.urls import NoReverseMatch, reverse
from django.utils.html import format_html, format_html_join

from outbox_tasks.database.connection import Database
from outbox_tasks.django.admin_list import Destination, ErrorCode, MessageList, State, shown
from outbox_tasks.django.models import DeadLetter, Message
from outbox_tasks.django.permissions import may
from outbox_tasks.django.project import outbox_of_project
from outbox_tasks.errors import OutboxError, UnknownMessage
from outbox_tasks.operating.audit import deed
from outbox_tasks.operating.messages import filters
from outbox_tasks.operating.messages.acts import Action, Operator
from outbox_tasks.operating.messages.find import DEAD, WAITING, Lookup
from outbox_tasks.operating.messages.life import error_of, life, tracebacks
from outbox_tasks.operating.messages.payload import hexadecimal, laid_out
from outbox_tasks.text import many, moment, printable

SIZE = 50
"""Messages on a page."""

PART = 64 * 1024
"""Bytes of a payload that are read, and shown."""

LONGEST_REASON, LONGEST_ERROR = 500, 120
"""Characters."""


@contextmanager
def database() -> Iterator[Database]:
    """Connections for one request. None stays open, so that a test can drop its database."""
    with closing(Database.connect(outbox_of_project().settings)) as opened:
        yield opened


def _told(view: Callable[..., Any]) -> Callable[..., Any]:
    """A view that tells people of trouble in a line, as the admin's other messages are."""

    def told(self: Any, request: Any, *arguments: Any, **keywords: Any) -> Any:
        try:
            return view(self, request, *arguments, **keywords)
        except OutboxError as error:
            self.message_user(request, str(error), messages.ERROR)
            return redirect(f"{self.admin_site.name}:index")

    return told


def _lines(pattern: str, values: Iterable[Iterable[object]]) -> Any:
    texts = ([printable(str(value)) for value in line] for line in values)
    return format_html_join("", f"<div>{pattern}</div>", texts)


class _Act(ActionForm):
    why = forms.CharField(
        required=False,
        max_length=LONGEST_REASON,
        label="",
        widget=forms.TextInput({"placeholder": "Why? For the audit", "aria-label": "Why", "size": 40}),
    )


PLACES = list(getattr(options, "ActionLocation", ()))
"""Where acts can be chosen: on a list, and since Django 6.1 on the page of a message."""


class _ReadOnly(admin.ModelAdmin):
    """Looks at messages. Nothing is added, changed or deleted."""

    states: tuple[str, ...] = (*WAITING, DEAD)
    """Those of the list, if no filter asks for others."""

    actions = ("redrive", "discard")
    action_form = _Act
    list_filter: tuple[Any, ...] = (State, Destination, ErrorCode)
    list_per_page = SIZE
    search_fields = ("id", "key")
    search_help_text = "An id or a key, as a whole."
    show_facets = admin.ShowFacets.NEVER
    show_full_result_count = False
    sortable_by = ()
    list_display: tuple[str, ...] = ("event_type", "destination", "key", "state", "attempts", "error", "created_at")
    facts = ("id", "event_type", "destination", "key", "state", "attempts", "last_error_code", "last_error", "waits")
    times = ("created_at", "dead_at", "finished_at", "life", "acts")
    contents = ("headers", "payload", "traceback")
    readonly_fields = (*facts, *times, *contents)

    def has_view_permission(self, request: Any, obj: Any = None) -> bool:
        return may(request.user, "look")

    def has_act_permission(self, request: Any) -> bool:
        """Whether the acts are offered, and done."""
        return may(request.user, "act")

    def has_add_permission(self, request: Any, obj: Any = None) -> bool:
        return False

    has_change_permission = has_delete_permission = has_add_permission

    def lookup_allowed(self, lookup: str, value: str, request: Any = None) -> bool:
        return any(lookup == each.parameter_name for each in self.list_filter)

    def get_search_results(self, request: Any, queryset: Any, search_term: str) -> tuple[Any, bool]:
        return queryset, False

    def get_changelist(self, request: Any, **keywords: Any) -> type[ChangeList]:
        return MessageList

    @_told
    def changelist_view(self, request: Any, extra_context: dict[str, Any] | None = None) -> Any:
        path = "errors" if self.states == (DEAD,) else "messages"
        with database() as request.outbox:
            return super().changelist_view(request, {**(extra_context or {}), "page": _on_the_page(path)})

    @_told
    def change_view(self, request: Any, object_id: str, form_url: str = "", extra_context: Any = None) -> Any:
        more = {**(extra_context or {}), "page": _on_the_page(f"messages/{object_id}")}
        return super().change_view(request, object_id, form_url, more)

    def get_object(self, request: Any, object_id: str, from_field: str | None = None) -> Any:
        try:
            with database() as opened:
                one = Lookup(opened).one(UUID(object_id), PART if may(request.user, "payload") else 0)
        except (ValueError, UnknownMessage):
            return None
        found = shown(self.model, one)
        found.one = one
        return found

    def get_fieldsets(self, request: Any, obj: Any = None) -> list[tuple[str | None, dict[str, Any]]]:
        sets = [(None, self.facts), ("Life", self.times)]
        if may(request.user, "payload"):
            sets.append(("Contents", self.contents))
        return [(title, {"fields": [name for name in names if self._says(name, obj)]}) for title, names in sets]

    def _says(self, name: str, message: Any) -> bool:
        """Whether there is anything to be shown."""
        return (getattr(self, name)(message) if hasattr(self, name) else getattr(message, name)) not in (None, "")

    @admin.display(description="error")
    def error(self, message: Any) -> str:
        text = error_of({"last_error_code": message.last_error_code, "last_error": message.last_error})
        return text if len(text) <= LONGEST_ERROR else f"{text[:LONGEST_ERROR]}…"

    @admin.display(description="it waits because")
    def waits(self, message: Any) -> str:
        return printable(str(message.one["waits"] or ""))

    @admin.display(description="what happened")
    def life(self, message: Any) -> Any:
        events = ((each.at if isinstance(each.at, str) else moment(each.at), each.text) for each in life(message.one))
        return _lines("{}  {}", events)

    @admin.display(description="what people did")
    def acts(self, message: Any) -> Any:
        acts = ((moment(act["at"]), act["who"], deed(act), act["why"] or "") for act in message.one["audit"])
        return _lines("{}  {}: {}. {}", acts)

    def headers(self, message: Any) -> Any:
        said = message.one["headers"]
        return _lines("{}: {}", said.items() if isinstance(said, dict) else [("", said)])

    def payload(self, message: Any) -> Any:
        content = bytes(message.one["payload"])
        text = laid_out(content)
        rest = f"\n… {message.one['size']:,} bytes in all" if message.one["size"] > len(content) else ""
        return format_html("<pre>{}{}</pre>", hexadecimal(content, 32) if text is None else printable(text), rest)

    def traceback(self, message: Any) -> Any:
        """Of the last error that has one."""
        found = tracebacks(message.one)
        return format_html("<pre>{}</pre>", printable(found[-1])) if found else ""

    @admin.action(permissions=["act"], description="Redrive: send again")
    def redrive(self, request: Any, queryset: Any) -> None:
        """Send the chosen dead letters again."""
        self._act(request, "redrive")

    @admin.action(permissions=["act"], description="Discard: never send")
    def discard(self, request: Any, queryset: Any) -> None:
        """Give the chosen messages up."""
        self._act(request, "discard")

    redrive.locations = discard.locations = PLACES

    def _act(self, request: Any, action: Action) -> None:
        said = [request.POST.get(name, "").strip() for name in ("why", "CHANGE_FORM-why")]
        if not any(said):
            self.message_user(request, "Say why: the audit keeps it. Nothing was done.", messages.ERROR)
            return
        ids = filters.ids_of(request.POST.getlist(ACTION_CHECKBOX_NAME))
        about: dict[str, Any] = {"target": str(ids[0])} if len(ids) == 1 else {"facts": {"named": len(ids)}}
        able = filters.CHANGEABLE[action]
        with database() as opened:
            operator = Operator(opened, request.user.get_username(), next(filter(None, said)))
            done = operator.act(action, ids, states=[state for state in able if state in self.states], **about)
        text = f"{many(done.count, 'message')} {filters.DONE[action]}: number {done.entry} in the audit."
        if done.missed:
            text += f" {many(len(done.missed), 'message')} not: only these can be: {', '.join(able)}."
        self.message_user(request, text, messages.WARNING if done.missed else messages.SUCCESS)


@admin.register(Message)
class MessageAdmin(_ReadOnly):
    """What is at work; what was sent, too, if the filter asks for it."""


@admin.register(DeadLetter)
class DeadLetterAdmin(_ReadOnly):
    """Dead letters, the last to die first."""

    states = (DEAD,)
    list_filter = (Destination, ErrorCode)
    list_display = ("event_type", "destination", "key", "error", "attempts", "dead_at")


def _on_the_page(path: str) -> Any:
    """Where the page shows the same, if the project has it."""
    try:
        return reverse("outbox_tasks:page", kwargs={"path": path})
    except NoReverseMatch:
        return None
