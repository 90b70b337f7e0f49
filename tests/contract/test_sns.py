"""What the SNS publisher writes down on the wire, as a queue gets it that subscribes to the topic."""

from __future__ import annotations

from contextlib import closing

from tests.contract.counterparts.sns import Counterpart
from tests.contract.messages import SENT, loaded, message, numbers
from tests.contract.moto_server import ACCOUNT, REGION, values


def test_writes_the_attributes_of_the_contract(target: Counterpart) -> None:
    sent = message(key="k", aggregate_id="a", headers={"traceparent": "00-a-b-01", "tenant": "t1"})
    with closing(loaded(target.url(target.place))) as publisher:
        assert publisher.publish([sent]) == [SENT]
    [arrived] = target.raw()
    assert arrived["Body"] == '{"n": 0}'
    assert values(arrived) == {
        "ce_id": sent.id,
        "ce_type": "order.created",
        "ce_source": "/shop",
        "ce_time": "2030-01-02T03:04:05.000678+00:00",
        "ce_subject": "a",
        "ce_partitionkey": "k",
        "ce_traceparent": "00-a-b-01",
        "content_type": "application/json",
        "headers": '{"tenant": "t1"}',
    }


def test_a_topic_may_be_named_by_its_arn(target: Counterpart) -> None:
    url = f"sns://test:test@{REGION}/arn:aws:sns:{REGION}:{ACCOUNT}:{target.place}?endpoint={target.address}"
    with closing(loaded(url)) as publisher:
        assert publisher.publish([message(3)]) == [SENT]
    assert numbers(target) == [3]


def test_a_fifo_topic_gets_the_key_as_group_and_the_id_against_copies(server: Counterpart) -> None:
    sqs, sns = server.client("sqs"), server.client("sns")
    server.new_place()
    queue = f"{server.place}.fifo"
    sqs.create_queue(QueueName=queue, Attributes={"FifoQueue": "true"})
    topic = sns.create_topic(Name=queue, Attributes={"FifoTopic": "true"})["TopicArn"]
    endpoint = f"arn:aws:sqs:{REGION}:{ACCOUNT}:{queue}"
    sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=endpoint, Attributes={"RawMessageDelivery": "true"})
    with closing(loaded(f"sns://test:test@{REGION}/{ACCOUNT}/{queue}?endpoint={server.address}")) as publisher:
        for n in (0, 1, 2, 1):
            assert publisher.publish([message(n, key="k")]) == [SENT]
    server.place = queue
    assert numbers(server) == [0, 1, 2]
    assert {each["Attributes"]["MessageGroupId"] for each in server.raw()} == {"k"}
