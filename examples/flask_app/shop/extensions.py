from flask_sqlalchemy import SQLAlchemy
from outbox_tasks import Outbox
from sqlalchemy.orm import DeclarativeBase


class Base(DeclarativeBase):
    pass


db = SQLAlchemy(model_class=Base)
outbox = Outbox()  # settings from outbox.toml and the environment
