"""The shop's staff: they sign in, and may look at the outbox and act on it."""

import hmac
from wsgiref.types import WSGIEnvironment

from flask import Blueprint, Flask, abort, current_app, redirect, request, session
from flask.typing import ResponseReturnValue
from outbox_tasks.web import Page, Person, Role
from werkzeug.middleware.dispatcher import DispatcherMiddleware

from shop.extensions import outbox

FORM = """<!doctype html><title>Sign in</title><form method="post">
<label>Name <input name="name" required></label>
<label>Password <input name="password" type="password" required></label>
<button>Sign in</button></form>"""

staff = Blueprint("staff", __name__)


@staff.get("/login")
def ask_for_password() -> ResponseReturnValue:
    return FORM


@staff.post("/login")
def sign_in() -> ResponseReturnValue:
    password = str(current_app.config.get("STAFF_PASSWORD", ""))
    if not password or not hmac.compare_digest(request.form["password"].encode(), password.encode()):
        abort(401)
    session["name"] = request.form["name"]
    return redirect("/outbox/")


def mount_page(app: Flask) -> None:
    """Mount the outbox's page at /outbox, for those who have signed in."""

    def visitor(environ: WSGIEnvironment) -> Person | None:
        with app.request_context(environ):
            name = session.get("name")
        return Person(name, Role.ACT) if name else None

    app.wsgi_app = DispatcherMiddleware(app.wsgi_app, {"/outbox": Page(outbox, who=visitor).wsgi})
