"""What `celery -A shop.worker` finds."""

from shop import create_app

celery = create_app().extensions["celery"]
