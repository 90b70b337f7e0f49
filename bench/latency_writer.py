"""Publishes messages at a steady rate, and prints when each was committed: a process of its own for `bench latency`.

Arguments: messages a second, seconds, a prefix of their keys (empty for none), and the destination.
"""

import json
import sys
import time

from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from outbox_tasks import Outbox, Settings
from outbox_tasks.database.engine import engine_url

rate, seconds, key, destination = float(sys.argv[1]), float(sys.argv[2]), sys.argv[3], sys.argv[4]
settings = Settings()
engine, outbox = create_engine(engine_url(str(settings.database_url))), Outbox(settings)


def publish(number: int) -> tuple[str, float]:
    """The id, and when the commit had returned."""
    key_of_this = f"{key}:{number}" if key else None
    with Session(engine) as session, session.begin():
        id = outbox.publish(session, "order.created", {"id": number}, key=key_of_this, to=destination)
    return str(id), time.time() * 1000


for warming in range(5):
    publish(-1 - warming)
    time.sleep(0.1)
committed = {}
began = time.perf_counter()
for number in range(round(rate * seconds)):
    time.sleep(max(0.0, began + number / rate - time.perf_counter()))
    id, at = publish(number)
    committed[id] = at
time.sleep(0.2)  # the last nudge is sent in the background
print(json.dumps(committed))
