"""What we use of SQLAlchemy, Django and Celery, as an application has them, that they do not promise; and our patches.

`tests/unit/test_internals.py` fails for each one that a release no longer has, or no longer calls. Celery is imported
only where it is needed: the pipe runs without.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from sqlalchemy import Connection

Function = Callable[..., Any]
Wrap = Callable[[Function], Function]


def wrap_calls(send_task: Wrap, then: Wrap, get: Wrap) -> None:
    """Wrap `Celery.send_task`, in which all ways to call a task end, and the results' methods that wait. Nothing less
    catches every call: a `producer` given to `Task.apply_async` gets lost on some ways, such as in a chain."""
    from celery import Celery
    from celery.result import AsyncResult

    Celery.send_task, AsyncResult.then = send_task(Celery.send_task), then(AsyncResult.then)
    AsyncResult.get = AsyncResult.wait = get(AsyncResult.get)


def sends_what_follows() -> bool:
    """Whether a worker sends what follows the task that has ended. Celery has this mark since 5.7."""
    from celery.app import amqp

    follows = getattr(amqp, "_callback_publish_retry", None)
    return bool(follows is not None and follows.get())


def is_heard(connection: Connection) -> bool:
    """Whether somebody listens to the statements of a SQLAlchemy connection or logs them, as tracing does."""
    heard, heard_by_all = connection.dispatch, connection.dialect.dispatch
    return bool(
        heard.before_cursor_execute
        or heard.after_cursor_execute
        or heard_by_all.do_execute
        or heard_by_all.handle_error
        or connection.engine.logger.isEnabledFor(logging.INFO)
    )


def raise_as_sqlalchemy(connection: Connection, error: BaseException, text: str, values: Any, cursor: Any) -> NoReturn:
    """SQLAlchemy's own way to raise its errors, and to part with lost connections: it has no public one."""
    of_driver = isinstance(error, connection.dialect.loaded_dbapi.Error)
    connection._handle_dbapi_exception(error, text if of_driver else None, values, cursor, None)


def can_await() -> bool:
    """Whether SQLAlchemy can await here: in a greenlet of its own."""
    greenlet = sys.modules.get("greenlet")
    return greenlet is not None and type(greenlet.getcurrent()).__module__.startswith("sqlalchemy.")


def block_of_test(connection: Any) -> object | None:
    """The transaction of a Django `TestCase` that is open on a connection, which it rolls back: its innermost `Atomic`
    with `_from_testcase`."""
    return next((block for block in reversed(connection.atomic_blocks) if block._from_testcase), None)


def in_block_of_app(connection: Any) -> bool:
    """Whether a Django connection is in an `atomic` block of the application: not just in that of a `TestCase`."""
    blocks = connection.atomic_blocks
    return bool(connection.in_atomic_block and not (blocks and blocks[-1]._from_testcase))
