"""txoutbox at its fastest, as a process for `bench yardsticks`: no order of keys, no time limit, a bare RPUSH.

Arguments: the URLs of the database and of the Redis, messages of a batch, how many are sent at once.
"""

import asyncio
import sys
from datetime import timedelta

import redis.asyncio
from txoutbox import OutboxMessage, Relay, RelayConfig
from txoutbox.adapters.postgres import PostgresStorage


async def main(database: str, stream: str, batch: int, at_once: int) -> None:
    client = redis.asyncio.Redis.from_url(stream)
    storage = await PostgresStorage.connect(database, table="txoutbox", strict_ordering=False, min_size=1, max_size=4)

    async def publish(message: OutboxMessage) -> None:
        await client.rpush("txoutbox", message.payload)

    config = RelayConfig(
        batch_size=batch, concurrency=at_once, publish_timeout=None, lease=timedelta(minutes=5), poll_max=0.05
    )
    await Relay(storage, publish, config=config).run(handle_signals=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
