"""The full-stack FastAPI template: few lines let its items send an event if, and only if, they are committed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest
import redis

from outbox_tasks.local.servers import EmbeddedValkey
from tests.conftest import eventually
from tests.examples.conftest import Project
from tests.examples.templates import adopt, install, python, repository
from tests.postgres_servers import OtherPostgres

NAME, TAG = "fastapi/full-stack-fastapi-template", "0.12.0"
pytestmark = pytest.mark.timeout(900)  # it fetches what the template needs
PASSWORD = "a password of the first superuser"


@pytest.fixture(scope="module")
def postgres_url() -> Iterator[str]:
    """The template's migrations need an extension that our wheel of PostgreSQL doesn't have."""
    extension = "/usr/share/postgresql/{}/extension/uuid-ossp.control"
    found = [place for place in Path("/usr/lib/postgresql").glob("*") if Path(extension.format(place.name)).exists()]
    if not found:
        pytest.skip("its migrations need uuid-ossp, and no PostgreSQL here has that (the Debian package postgresql)")
    with OtherPostgres(max(found, key=lambda place: int(place.name)) / "bin") as server:
        yield server.url


@pytest.fixture
def project(tmp_path: Path, database: str, own_redis: EmbeddedValkey) -> Iterator[Project]:
    """Its backend with an outbox: a project is a clone."""
    url, chosen = urlsplit(database), python("3.14")
    clone = ("git", "clone", "--quiet", "--depth", "1", "--branch", TAG, repository(NAME, TAG), "site")
    Project(tmp_path, tmp_path, {}).run(*clone)
    adopt(tmp_path / "site", "The full-stack FastAPI template", redis=urlsplit(own_redis.url).netloc)
    env = {
        "OUTBOX_DATABASE_URL": database, "DATABASE_URL": database, "POSTGRES_SERVER": str(url.hostname),
        "POSTGRES_PORT": str(url.port), "POSTGRES_DB": url.path[1:], "POSTGRES_USER": str(url.username),
        "POSTGRES_PASSWORD": url.password or "", "FIRST_SUPERUSER_PASSWORD": PASSWORD,
    }  # fmt: skip
    made = Project(tmp_path / "site/backend", tmp_path, env)
    (made.directory / "app/frontend").mkdir(exist_ok=True)  # built by npm, in a deployment
    install(made, chosen, "-e", ".")
    yield from made.used()


def test_a_few_lines_let_the_template_send_what_it_commits(
    project: Project, database: str, own_redis: EmbeddedValkey
) -> None:
    project.run("bash", "scripts/prestart.sh")
    with psycopg.connect(database) as connection:  # what fails at the commit fails after the event was written
        connection.execute("ALTER TABLE item ADD CONSTRAINT once UNIQUE (title) DEFERRABLE INITIALLY DEFERRED")
    project.worker("outbox_tasks", "-B")
    site = project.web(project.python, "-m", "fastapi", "run", "--port", "{port}")
    login = {"username": "admin@example.com", "password": PASSWORD}
    token = site.post("/api/v1/login/access-token", data=login).json()["access_token"]
    site.headers.update({"Authorization": f"Bearer {token}", "Connection": "close"})  # a failed request ends it
    said = [site.post("/api/v1/items/", json={"title": title}) for title in ("chair", "chair", "table")]
    assert [one.status_code for one in said] == [200, 500, 200]
    with redis.Redis.from_url(f"{own_redis.url[:-1]}1", decode_responses=True) as client:
        eventually(lambda: client.xlen("items") >= 2)
        events = [json.loads(entry["data"]) for _, entry in client.xrange("items")]
    assert {event["id"] for event in events} == {said[0].json()["id"], said[2].json()["id"]}
    assert project.rows("SELECT state FROM outbox.outbox_all") == [("sent",)] * 2

    project.run(project.python, "-m", "alembic", "revision", "--autogenerate", "-m", "later")
    [later] = (project.directory / "app/alembic/versions").glob("*_later.py")
    assert "outbox" not in later.read_text()
