"""A Flask shop that has had Celery all along, and now an outbox."""

import os

from flask import Flask

from shop.celery_app import make_celery
from shop.extensions import db, outbox
from shop.views import shop


def create_app() -> Flask:
    app = Flask(__name__)
    app.config.from_mapping(
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

    # The relay runs in the workers of this Celery app; and what is called with `delay` or `apply_async` while a
    # transaction of db.session is open is sent once that has committed.
    outbox.install(celery, capture=db.session)

    app.register_blueprint(shop)
    app.cli.command("create-tables")(db.create_all)
    return app
