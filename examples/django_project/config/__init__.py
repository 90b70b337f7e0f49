# So that shared tasks find the Celery app, as Celery's documentation has it.
from config.celery import app as celery_app

__all__ = ["celery_app"]
