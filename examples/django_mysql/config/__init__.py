import pymysql

# Django asks for mysqlclient, which needs a C compiler. PyMySQL stands in for it.
pymysql.install_as_MySQLdb()

# So that shared tasks find the Celery app, as Celery's documentation has it.
from config.celery import app as celery_app  # noqa: E402

__all__ = ["celery_app"]
