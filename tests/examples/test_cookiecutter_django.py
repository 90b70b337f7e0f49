"""cookiecutter-django: few lines let a view send a task and an event if, and only if, its transaction commits."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import psycopg
import pytest
import redis

from outbox_tasks.local.servers import EmbeddedValkey
from tests.conftest import eventually
from tests.examples.conftest import STAFF_PASSWORD, Project
from tests.examples.templates import adopt, generate, install, python, repository

NAME, TAG = "cookiecutter/cookiecutter-django", "2026.8.18"
pytestmark = pytest.mark.timeout(900)  # it fetches what the template needs
VIEWS = "my_awesome_project/users/views.py"

IMPORTS = "from my_awesome_project.users.models import User\n"
MESSAGE = '    success_message = _("Information successfully updated")\n'
CALLS_A_TASK = f"""\
{MESSAGE}
    def form_valid(self, form):
        response = super().form_valid(form)
        get_users_count.delay()
        return response
"""
"""The template has a task, and calls it nowhere."""


@pytest.fixture
def project(tmp_path: Path, database: str, own_redis: EmbeddedValkey) -> Iterator[Project]:
    """The project with an outbox."""
    source, chosen = repository(NAME, TAG), python("3.14")
    config = tmp_path / "cookiecutter.yaml"
    config.write_text(f"cookiecutters_dir: {tmp_path / 'fetched'}\nreplay_dir: {tmp_path / 'replay'}\n")
    options = ("--no-input", "--config-file", str(config), "--checkout", TAG)
    generate(tmp_path, chosen, "cookiecutter", "cookiecutter", *options, f"git+{source}", "use_celery=y")
    site = tmp_path / "my_awesome_project"
    views = (site / VIEWS).read_text()
    imports = f"{IMPORTS}from my_awesome_project.users.tasks import get_users_count\n"
    (site / VIEWS).write_text(views.replace(IMPORTS, imports).replace(MESSAGE, CALLS_A_TASK))
    described = tomllib.loads((site / "pyproject.toml").read_text())
    needed = [one for one in described["project"]["dependencies"] if not one.startswith("psycopg")]
    local = ("psycopg", "django-debug-toolbar", "django-extensions")  # psycopg has to be compiled in production
    needed += [one for one in described["dependency-groups"]["dev"] if one.startswith(local)]
    adopt(site, "cookiecutter-django", redis=urlsplit(own_redis.url).netloc)
    made = Project(site, tmp_path, {"DATABASE_URL": database, "REDIS_URL": own_redis.url})
    install(made, chosen, *needed)
    yield from made.used()


def test_a_few_lines_let_the_template_send_what_it_commits(
    project: Project, database: str, own_redis: EmbeddedValkey
) -> None:
    manage = (project.python, "manage.py")
    project.run(*manage, "migrate")
    project.run(*manage, "check")
    project.env["DJANGO_SUPERUSER_PASSWORD"] = STAFF_PASSWORD
    for name in ("anna", "bert"):
        named = ("--username", name, "--email", f"{name}@example.com")
        project.run(*manage, "createsuperuser", *named, "--noinput")
    with psycopg.connect(database) as connection:  # what fails at the commit fails after both were written
        connection.execute("UPDATE users_user SET name = username")
        connection.execute("ALTER TABLE users_user ADD CONSTRAINT once UNIQUE (name) DEFERRABLE INITIALLY DEFERRED")
    project.worker("config.celery_app", "-B")
    site = project.web(*manage, "runserver", "--noreload", "{port}")
    assert post(site, "/admin/login/", username="anna", password=STAFF_PASSWORD).status_code == 302
    assert post(site, "/users/~update/", name="bert").status_code == 500
    assert post(site, "/users/~update/", name="Anna").status_code == 302
    with (
        redis.Redis.from_url(own_redis.url, decode_responses=True) as results,
        redis.Redis.from_url(f"{own_redis.url[:-1]}1", decode_responses=True) as events,
    ):
        eventually(lambda: events.xlen("users") and results.keys("celery-task-meta-*"))
        assert [json.loads(entry["data"]) for _, entry in events.xrange("users")] == [{"id": 1}]
        [key] = results.keys("celery-task-meta-*")
        said = json.loads(str(results.get(key)))
    assert (said["name"], said["result"]) == ("my_awesome_project.users.tasks.get_users_count", 2)
    with psycopg.connect(database) as connection:
        assert connection.execute("SELECT FROM outbox_all").rowcount == 2


def post(site: httpx.Client, path: str, **form: str) -> httpx.Response:
    """Send a form as a browser would."""
    site.get(path)
    return site.post(path, data={**form, "csrfmiddlewaretoken": site.cookies["csrftoken"]})
