"""Processes that are traced.

As an application, `python -m uvicorn tests.acceptance.traced:shop` takes orders over HTTP. A worker imports it too
(`-I tests.acceptance.traced`), and sets its tracing up in each process of its pool, after the fork.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from celery.signals import worker_process_init, worker_process_shutdown
from fastapi import FastAPI, HTTPException, Request
from opentelemetry import trace
from opentelemetry.propagate import extract
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from outbox_tasks import Outbox
from outbox_tasks.database.engine import engine_url
from tests.acceptance.spans import close, set_up

worker_process_init.connect(set_up, weak=False)
worker_process_shutdown.connect(close, weak=False)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """In the application's process."""
    set_up()
    app.state.outbox = Outbox()
    app.state.engine = create_engine(engine_url(os.environ["OUTBOX_DATABASE_URL"]))
    yield
    app.state.engine.dispose()


shop = FastAPI(lifespan=lifespan)


@shop.post("/orders/{number}")
def order(number: int, request: Request) -> dict[str, str]:
    """Write a message, in a span that carries on the caller's trace; and roll it back if the number is 0."""
    tracer = trace.get_tracer("shop")
    with tracer.start_as_current_span("POST /orders", context=extract(request.headers), kind=trace.SpanKind.SERVER):
        with Session(shop.state.engine) as session, session.begin():
            id = shop.state.outbox.publish(session, "order.created", {"id": number}, to="orders")
            if number == 0:
                raise HTTPException(409)
        return {"id": str(id)}
