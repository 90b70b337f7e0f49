"""What the inbox refuses before it asks a database, and how a decorated function looks to its callers."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any
from uuid import uuid4

import pytest
from celery import Celery
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import async_sessionmaker
from sqlalchemy.orm import Session, sessionmaker

from outbox_tasks.errors import FeedMissing, InboxCollision, InboxMisused, NotInTransaction
from outbox_tasks.writing.inbox import Inbox

BILLING = Inbox("billing")
UNSTORABLE: list[Any] = ["", "x" * 256, "a\0b", "\ud800", None, 7, b"id"]


class TestRefusals:
    def test_what_does_not_fit_into_a_key_is_refused_before_the_session_is_used(self) -> None:
        for value in UNSTORABLE:
            with pytest.raises(InboxMisused, match="must be text of 1 to 255 characters"):
                Inbox(value)
            with pytest.raises(InboxMisused, match="'billing' can't work: the message id"):
                BILLING.first(None, value)  # type: ignore[call-overload]

    def test_outside_of_a_transaction_first_is_refused(self) -> None:
        with pytest.raises(NotInTransaction, match=r"written for 'billing'.*with session\.begin"):
            BILLING.first(Session(), uuid4())
        with pytest.raises(NotInTransaction):  # the longest texts are taken
            Inbox("ä" * 255).first(Session(), "ö" * 255)

    def test_a_database_without_the_table_is_told_how_to_make_it(self) -> None:
        with Session(create_engine("sqlite://")) as session, session.begin(), pytest.raises(FeedMissing, match="init"):
            BILLING.first(session, "1")

    def test_a_sessionmaker_that_does_not_fit_the_function_is_refused(self) -> None:
        async def charge() -> None: ...
        def charge_sync() -> None: ...

        with pytest.raises(InboxMisused, match=r"charge is async, but the argument of once\(\) is not"):
            BILLING.once(sessionmaker())(charge)
        with pytest.raises(InboxMisused, match=r"charge_sync is not async, but the argument of once\(\) is"):
            BILLING.once(async_sessionmaker())(charge_sync)  # type: ignore[arg-type]

    def test_without_a_running_task_the_call_is_refused(self) -> None:
        def charge() -> None: ...

        with pytest.raises(InboxMisused, match="no Celery task is running"):
            BILLING.once(sessionmaker())(charge)()
        task = Celery(set_as_current=False).task(BILLING.once(sessionmaker())(charge), shared=False)
        with pytest.raises(InboxMisused, match="no Celery task is running"):
            task()  # it is called as a function


@pytest.mark.parametrize(("message", "tries"), [("1", 10), ("2", 1)])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_only_a_collision_of_its_own_message_is_tried_again(message: str, tries: int, asynchronous: bool) -> None:
    begun: list[int] = []

    def begin() -> Any:
        begun.append(1)
        raise InboxCollision(consumer="billing", message=message, reason="a deadlock")

    async def charge() -> None: ...
    def charge_sync() -> None: ...

    once = BILLING.once(begin, message_id=lambda: "1")
    with pytest.raises(InboxCollision):
        asyncio.run(once(charge)()) if asynchronous else once(charge_sync)()
    assert len(begun) == tries


class TestSignature:
    def test_callers_do_not_see_the_session(self) -> None:
        @BILLING.once(sessionmaker())
        def charge(session: Session, order: int, *, note: str = "") -> int:
            """Take the money."""
            return order

        assert str(inspect.signature(charge)) == "(order: 'int', *, note: 'str' = '') -> 'int'"
        assert (charge.__name__, charge.__doc__) == ("charge", "Take the money.")

    def test_celery_checks_the_other_arguments(self) -> None:
        def charge(self: Any, session: Session, order: int) -> None: ...

        app = Celery(broker="memory://", set_as_current=False)
        task = app.task(BILLING.once(sessionmaker())(charge), bind=True, shared=False)
        task.delay(42)
        task.delay(order=42)
        for wrong in ((), (1, 2)):
            with pytest.raises(TypeError, match="positional argument"):
                task.delay(*wrong)
        with pytest.raises(TypeError, match="session"):
            task.delay(42, session=1)
