"""The service that receivers of the gRPC publisher implement, and its messages, from the definition beside this file.

What is stored is the compiled definition, a descriptor set. It is the same for all releases of protobuf, while
generated Python code serves no more than two major ones.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

DELIVER = "/outbox_tasks.v1.OutboxReceiver/Deliver"


def _pool() -> Any:
    """A pool of our own, because the application may have the CloudEvents types too, from a file of another name."""
    pool = DescriptorPool()
    compiled = FileDescriptorSet.FromString(Path(__file__).with_name("outbox_receiver.binpb").read_bytes())
    for file in compiled.file:
        pool.AddSerializedFile(file.SerializeToString())
    return pool


_known = _pool()
CloudEvent: Any = GetMessageClass(_known.FindMessageTypeByName("io.cloudevents.v1.CloudEvent"))
DeliverRequest: Any = GetMessageClass(_known.FindMessageTypeByName("outbox_tasks.v1.DeliverRequest"))
DeliverResponse: Any = GetMessageClass(_known.FindMessageTypeByName("outbox_tasks.v1.DeliverResponse"))
