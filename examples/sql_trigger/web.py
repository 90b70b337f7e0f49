"""A small HTTP front end to the tables. It only runs SQL, and does not know the outbox.

Run it with: python web.py
"""

import json
import os
import sys
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import psycopg

INSERT_ORDER = "INSERT INTO orders (email) VALUES (%(email)s) RETURNING id"
INSERT_LINES = """
    INSERT INTO order_lines
    SELECT %(id)s, product, quantity FROM json_to_recordset(%(lines)s) AS line (product text, quantity integer)"""
UPDATE_STATUS = "UPDATE orders SET status = %(status)s WHERE id = %(id)s"
SELECT_ORDER = "SELECT status FROM orders WHERE id = %(id)s"
SELECT_TOLD = "SELECT content FROM notifications WHERE order_id = %(id)s ORDER BY message_id"


class Pages(BaseHTTPRequestHandler):
    def do_POST(self):
        """/orders: a new order with its lines."""
        order = self.read_json()
        try:
            with self.database() as connection:  # one transaction: the order, its message and its lines, or nothing
                [id] = connection.execute(INSERT_ORDER, order).fetchone()
                connection.execute(INSERT_LINES, {"id": id, "lines": json.dumps(order["lines"])})
        except psycopg.errors.IntegrityError as error:
            self.answer(409, {"error": error.diag.message_primary})
        else:
            self.answer(201, {"id": id})

    def do_PATCH(self):
        """/orders/1: its new status."""
        with self.database() as connection:
            connection.execute(UPDATE_STATUS, {"id": self.order_id(), **self.read_json()})
        self.answer(200, {})

    def do_GET(self):
        """/orders/1: the order, and what its customer was told."""
        with self.database() as connection:
            order = connection.execute(SELECT_ORDER, {"id": self.order_id()}).fetchone()
            told = connection.execute(SELECT_TOLD, {"id": self.order_id()}).fetchall()
        if order is None:
            self.answer(404, {"error": "no such order"})
        else:
            self.answer(200, {"status": order[0], "notifications": [content for [content] in told]})

    def database(self):
        return psycopg.connect(os.environ["OUTBOX_DATABASE_URL"])

    def order_id(self):
        id = self.path.rpartition("/")[2]
        return int(id) if id.isdecimal() else None

    def read_json(self):
        return json.loads(self.rfile.read(int(self.headers["Content-Length"])))

    def answer(self, status, content):
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


if __name__ == "__main__":
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 8000
    print(f"http://127.0.0.1:{port}/", flush=True)
    with suppress(KeyboardInterrupt):
        ThreadingHTTPServer(("127.0.0.1", port), Pages).serve_forever()
