"""A Flask shop with Celery, and now with an outbox."""

import os
import secrets

from flask import Flask

from shop.celery_app import make_celery
from shop.extensions import db, outbox
from shop.staff import mount_page, staff
from shop.views import shop


def create_app() -> Flask:
    app = Flask(__name__)
    app.config.from_mapping(
        SECRET_KEY=secrets.token_hex(),
        # The relay's URL, with SQLAlchemy's name for its driver, psycopg 3.
        SQLALCHEMY_DATABASE_URI=os.environ["OUTBOX_DATABASE_URL"].replace("postgresql:", "postgresql+psycopg:", 1),
        CELERY={
            "broker_url": os.environ["OUTBOX_BROKER_URL"],
            "task_ignore_result": True,
            "task_default_queue": "shop",
        },
    )
    app.config.from_prefixed_env()
    db.init_app(app)
    celery = app.extensions["celery"] = make_celery(app)

    # The relay runs in the workers of this Celery app. While a transaction of db.session is open, the tasks that are
    # called with `delay` or `apply_async` are sent after its commit.
    outbox.install(celery, capture=db.session)

    app.register_blueprint(shop)
    app.register_blueprint(staff)
    mount_page(app)
    app.cli.command("create-tables")(db.create_all)
    return app
