"""Redis Streams."""

from outbox_tasks.destinations.redis_stream.publisher import RedisStreamPublisher

__all__ = ["RedisStreamPublisher"]
