"""Celery as in Flask's documentation: tasks run in an app context.

Run it with: celery -A shop.worker worker -n shop@%h -B
"""

from celery import Celery, Task
from flask import Flask


def make_celery(app: Flask) -> Celery:
    class FlaskTask(Task):
        def __call__(self, *args: object, **kwargs: object) -> object:
            with app.app_context():
                return self.run(*args, **kwargs)

    celery = Celery(app.name, task_cls=FlaskTask)
    celery.config_from_object(app.config["CELERY"])
    celery.set_default()
    return celery
