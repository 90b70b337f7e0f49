"""The warehouse: takes the orders off the Redis Stream and packs them. Run it with: python consumer.py"""

import asyncio
import json
from contextlib import suppress

from outbox_tasks import Inbox, Settings
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from database import Order, make_tables, new_session

GROUP, CONSUMER = "warehouse", "warehouse-1"

inbox = Inbox(GROUP)


async def main() -> None:
    await make_tables()
    url, _, stream = Settings().destinations["events"].url.replace("+stream", "").rpartition("/")
    async with Redis.from_url(url, decode_responses=True) as client:
        with suppress(ResponseError):  # the group is there already
            await client.xgroup_create(stream, GROUP, id="0", mkstream=True)
        print("The warehouse is open.", flush=True)
        # First the entries that we had taken before a stop, then new ones.
        while await take(client, stream, "0"):
            pass
        while True:
            await take(client, stream, ">")


async def take(client: Redis, stream: str, after: str) -> int:
    """Process some entries, and acknowledge each after its commit. Returns how many."""
    answer = await client.xreadgroup(GROUP, CONSUMER, {stream: after}, count=10, block=1000)
    entries = [entry for _, of_stream in answer for entry in of_stream]
    for entry_id, fields in entries:
        if fields["ce_type"] == "order.created":
            await pack(fields["ce_id"], json.loads(fields["data"])["order_id"])
        await client.xack(stream, GROUP, entry_id)
    return len(entries)


async def pack(message_id: str, order_id: int) -> None:
    """Pack an order once, even if its message is delivered more than once."""
    async with new_session.begin() as session:
        if await inbox.first(session, message_id):
            order = await session.get_one(Order, order_id)
            order.status = "packed" if order.status == "received" else "packed twice"


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        asyncio.run(main())
