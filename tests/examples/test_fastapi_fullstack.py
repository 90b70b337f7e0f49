"""A FastAPI application with Celery and an AsyncSession, as the generator fastapi-fullstack makes it: few lines let it
send a task and an event if, and only if, its transaction commits. The package index has this template."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest
import redis

from outbox_tasks.local.servers import EmbeddedValkey
from tests.conftest import eventually
from tests.examples.conftest import Project
from tests.examples.templates import adopt, generate, install

pytestmark = pytest.mark.timeout(900)  # it fetches what the template needs
CHOSEN = (
    "--database", "postgresql", "--frontend", "none", "--ai-framework", "none", "--redis", "--task-queue", "celery",
    "--example-resource", "--no-logfire", "--ci", "none", "--python-version", "3.11",
)  # fmt: skip

TASK = """\
from celery import shared_task


@shared_task
def announce(name: str) -> str:
    return name
"""
IMPORT, ADDED = "from app.db.models.item import Item\n", "    db.add(item)\n    await db.flush()\n"


@pytest.fixture
def project(tmp_path: Path, database: str, own_redis: EmbeddedValkey) -> Iterator[Project]:
    """Its backend with an outbox. The template has no task of its own."""
    create = ("fastapi-fullstack", "create", "shop", *CHOSEN)
    generate(tmp_path, sys.executable, "fastapi-fullstack==0.2.21", *create)
    backend = tmp_path / "shop/backend"
    (backend / "app/worker/tasks/__init__.py").write_text(TASK)
    items = backend / "app/repositories/item.py"
    text = items.read_text().replace(IMPORT, f"{IMPORT}from app.worker.tasks import announce\n")
    items.write_text(text.replace(ADDED, f"{ADDED}    announce.delay(item.name)\n"))
    url, broker = urlsplit(database), urlsplit(own_redis.url)
    adopt(tmp_path / "shop", "fastapi-fullstack", redis=broker.netloc)
    env = {
        "OUTBOX_DATABASE_URL": database, "POSTGRES_HOST": str(url.hostname), "POSTGRES_PORT": str(url.port),
        "POSTGRES_DB": url.path[1:], "POSTGRES_USER": str(url.username), "POSTGRES_PASSWORD": url.password or "",
        "REDIS_HOST": str(broker.hostname), "REDIS_PORT": str(broker.port), "CELERY_BROKER_URL": own_redis.url,
        "CELERY_RESULT_BACKEND": own_redis.url,
    }  # fmt: skip
    made = Project(backend, tmp_path, env)
    install(made, sys.executable, "-e", ".")
    yield from made.used()


def test_a_few_lines_let_the_template_send_what_it_commits(
    project: Project, database: str, own_redis: EmbeddedValkey
) -> None:
    project.run(project.python, "-m", "alembic", "upgrade", "head")
    project.run(project.python, "-m", "outbox_tasks", "init")
    with psycopg.connect(database) as connection:  # what fails at the commit fails after both were written
        connection.execute("ALTER TABLE items ADD CONSTRAINT once UNIQUE (name) DEFERRABLE INITIALLY DEFERRED")
    project.worker("app.worker.celery_app", "-B")
    site = project.web(project.python, "-m", "uvicorn", "app.main:app", "--port", "{port}")
    account = {"email": "anna@example.com", "password": "a password of Anna"}
    assert site.post("/api/v1/auth/register", json=account).status_code == 201
    login = {"username": account["email"], "password": account["password"]}
    token = site.post("/api/v1/auth/login", data=login).json()["access_token"]
    # It commits after it has answered. A failure ends the connection.
    site.headers.update({"Authorization": f"Bearer {token}", "Connection": "close"})
    ids = [site.post("/api/v1/items", json={"name": name}).json().get("id") for name in ("chair", "chair", "table")]
    with (
        redis.Redis.from_url(own_redis.url, decode_responses=True) as results,
        redis.Redis.from_url(f"{own_redis.url[:-1]}1", decode_responses=True) as events,
    ):
        eventually(lambda: events.xlen("items") >= 2 and len(results.keys("celery-task-meta-*")) >= 2)
        said = [json.loads(entry["data"])["id"] for _, entry in events.xrange("items")]
        ran = [json.loads(str(results.get(key)))["result"] for key in results.keys("celery-task-meta-*")]
    assert sorted(said) == sorted([ids[0], ids[2]])
    assert sorted(ran) == ["chair", "table"]
    assert len(project.rows("SELECT FROM outbox.outbox_all")) == 4
