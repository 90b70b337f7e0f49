"""The outbox in Django's admin, as tests of the example project: `test_django_project.py` runs them."""

from __future__ import annotations

import re
from html import unescape
from typing import Any
from unittest import skipUnless
from uuid import UUID

import django
from config.celery import outbox
from django.contrib.auth.models import Permission, User
from django.db import connection, transaction
from django.test import TransactionTestCase
from shop.tasks import book_order
from sqlalchemy import NullPool, create_engine

from outbox_tasks.django.admin import database
from outbox_tasks.errors import PermanentError
from outbox_tasks.testing import OutboxProbe
from tests.conftest import Rows
from tests.every_state import SAYS, STATES, write

ADMIN = "/admin/outbox_tasks"
HOSTILE = "<script>\u202e"
CHOSEN = re.compile(r'name="_selected_action" value="([^"]+)"')
SAID = re.compile(r'<li class="(?:success|warning|error)">([^<]*)</li>')


class Admin(TransactionTestCase):
    def setUp(self) -> None:
        self.outbox = self.enterContext(OutboxProbe())
        self.sign_in("anna", is_superuser=True)

    def sign_in(self, name: str, *permissions: str, **fields: Any) -> None:
        user = User.objects.create_user(name, is_staff=True, **fields)
        user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
        self.client.force_login(user)

    def publish(self, count: int = 1, **options: Any) -> list[UUID]:
        with transaction.atomic():
            return [outbox.publish(connection, "order.placed", {"order_id": n}, **options) for n in range(count)]

    def dead(self, count: int = 1, code: str = "no_such_user", **options: Any) -> list[UUID]:
        ids = self.publish(count, **options)
        self.outbox.fail("mail", PermanentError(f"{HOSTILE} is nobody", code=code), times=count)
        self.outbox.drain()
        return ids

    def get(self, path: str, status: int = 200, **query: str) -> str:
        answer = self.client.get(f"{ADMIN}/{path}", query)
        assert answer.status_code == status
        return answer.content.decode()

    def shown(self, path: str, **query: str) -> set[UUID]:
        """Those of this test: Django does not empty tables that it has no models for."""
        return self.states().keys() & map(UUID, CHOSEN.findall(self.get(path, **query)))

    def act(self, path: str, action: str, ids: list[UUID], why: str) -> list[str]:
        form = {"action": action, "_selected_action": list(map(str, ids)), "index": "0", "why": why}
        answer = self.client.post(f"{ADMIN}/{path}/", form, follow=True)
        assert answer.status_code == 200
        return SAID.findall(unescape(answer.content.decode()))

    def states(self) -> dict[UUID, str]:
        return {message.id: message.state for message in self.outbox.published}

    def test_the_lists(self) -> None:
        [gone], [other], [waiting] = self.dead(key=HOSTILE), self.dead(code="http_422"), self.publish()
        assert self.shown("deadletter/") == {gone, other}
        assert self.shown("deadletter/", error="http_422") == {other}
        assert self.shown("message/") == {gone, other, waiting}
        assert self.shown("message/", state="pending") == {waiting}
        assert self.shown("message/", destination="tasks") == set()
        text = self.get("deadletter/")
        assert "http_422 (1 dead)" in text
        assert "&lt;script&gt;\\u202e is nobody" in text
        assert HOSTILE[-1] not in text
        assert 'href="/outbox/errors"' in text

    def test_the_search_takes_an_id_or_a_key(self) -> None:
        [gone], [waiting] = self.dead(key="order:1"), self.publish(key="order:10")
        for path, word, found in (
            ("message/", str(waiting), {waiting}),
            ("message/", "order:10", {waiting}),
            ("message/", "order:", set()),
            ("deadletter/", str(gone), {gone}),
            ("deadletter/", "order:1", {gone}),
            ("deadletter/", str(waiting), set()),
        ):
            assert self.shown(path, q=word) == found, word

    def test_a_list_goes_on_from_page_to_page(self) -> None:
        ids = self.dead(60)
        first = self.get("deadletter/")
        [older] = re.findall(r'href="\?p=([^"]+)">Older', first)
        pages = [set(map(UUID, CHOSEN.findall(text))) for text in (first, self.get(f"deadletter/?p={unescape(older)}"))]
        assert len(pages[0]) == 50
        assert not pages[0] & pages[1]
        assert set(ids) <= pages[0] | pages[1]

    def test_no_statement_of_django_reads_the_messages(self) -> None:
        self.dead()
        with self.assertNumQueries(2):  # the session and the user
            self.get("deadletter/")

    def test_what_a_filter_does_not_know_is_refused(self) -> None:
        self.get("message/", status=400, payload__contains="x")
        assert "'lost' is no state" in unescape(self.get("message/", state="lost"))

    def test_a_message_is_shown_to_each_as_far_as_they_may_see_it(self) -> None:
        [id] = self.dead()
        assert "&quot;order_id&quot;: 0" in self.get(f"deadletter/{id}/change/")
        self.sign_in("ben", "look")
        text = self.get(f"deadletter/{id}/change/")
        assert "no_such_user" in text
        assert "order_id" not in text
        self.sign_in("chris")
        self.get("deadletter/", status=403)
        self.get(f"deadletter/{id}/change/", status=403)

    def test_a_message_in_each_state_is_shown(self) -> None:
        with database() as opened:
            url = opened.engine.url
        rows = Rows(create_engine(url, poolclass=NullPool), outbox.settings.database_schema)
        ids = [write(rows, state, more) for state in STATES for more in SAYS.values()]
        for id in ids:
            assert id in self.get(f"message/{id}/change/")
        assert "handed over" in self.get("message/")

    def test_nothing_can_be_added_changed_or_deleted(self) -> None:
        [id] = self.dead()
        for path in ("add/", f"{id}/delete/"):
            self.get(f"message/{path}", status=403)
        assert self.client.post(f"{ADMIN}/message/{id}/change/", {"key": "x"}).status_code == 403
        assert "delete_selected" not in self.get("message/")

    def test_a_redrive_needs_a_reason_and_the_audit_has_it(self) -> None:
        ids = self.dead(2)
        assert self.act("deadletter", "redrive", ids, " ") == ["Say why: the audit keeps it. Nothing was done."]
        [said] = self.act("deadletter", "redrive", ids, "Grace exists now")
        number = re.fullmatch(r"2 messages redriven: number (\d+) in the audit\.", said)
        assert number is not None
        assert self.states() == dict.fromkeys(ids, "pending")
        with connection.cursor() as cursor:
            cursor.execute("SELECT who, why, action, count FROM outbox_audit WHERE seq = %s", [number[1]])
            assert cursor.fetchone() == ("anna", "Grace exists now", "redrive", 2)
        [said] = self.act("deadletter", "redrive", ids, "again")
        assert "2 messages not: only these can be: dead." in said

    def test_a_waiting_message_can_be_discarded_among_the_messages_only(self) -> None:
        [id] = self.publish()
        assert "1 message not" in self.act("deadletter", "discard", [id], "too late")[0]
        assert "1 message discarded" in self.act("message", "discard", [id], "too late")[0]
        assert self.states() == {id: "discarded"}
        assert "too late" in self.get(f"message/{id}/change/")

    def test_who_may_only_look_can_do_nothing(self) -> None:
        [id] = self.dead()
        self.sign_in("ben", "payload")
        assert "redrive" not in self.get("deadletter/")
        self.act("deadletter", "redrive", [id], "I want to")
        assert self.states() == {id: "dead"}
        self.sign_in("dora", "act")
        self.act("deadletter", "redrive", [id], "I may")
        assert self.states() == {id: "pending"}

    @skipUnless(django.VERSION >= (6, 1), "the admin has acts on the page of one object since 6.1")
    def test_an_act_on_the_page_of_a_message(self) -> None:
        [id] = self.dead()
        form = {"CHANGE_FORM-action": "redrive", "CHANGE_FORM-why": "mended", "_selected_action": str(id)}
        self.client.post(f"{ADMIN}/deadletter/{id}/change/", form)
        assert self.states() == {id: "pending"}

    def test_trouble_is_told_in_a_line(self) -> None:
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE outbox_dead RENAME TO outbox_gone")
        try:
            answer = self.client.get(f"{ADMIN}/deadletter/", follow=True)
        finally:
            with connection.cursor() as cursor:
                cursor.execute("ALTER TABLE outbox_gone RENAME TO outbox_dead")
        self.assertRedirects(answer, "/admin/")
        assert "The outbox tables are not in" in answer.content.decode()

    def test_a_task_is_shown_as_a_message(self) -> None:
        with transaction.atomic():
            outbox.delay(connection, book_order, 42)
        assert "shop.tasks.book_order" in self.get("message/", destination="tasks")
