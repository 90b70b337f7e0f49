"""What the Kafka publisher promises beyond the others: the binding, keys and partitions, and what is sent when."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError

from outbox_tasks.destinations import load
from outbox_tasks.local.ports import free_port
from outbox_tasks.model import Result
from tests.conftest import eventually
from tests.contract.counterparts.kafka import INIT_PRODUCER_ID, PRODUCE, Counterpart
from tests.contract.messages import (
    SENT,
    WHOLE,
    configured,
    loaded,
    message,
    numbers,
    published,
    sent_by,
    whole,
    within,
)
from tests.contract.test_every_publisher import Ended, struck


class TestWhatIsWritten:
    def test_the_binary_mode_of_the_cloudevents_binding(self, target: Counterpart) -> None:
        assert published(target, WHOLE) == [SENT]
        [record] = target.raw()
        assert (record.key(), record.value()) == (b"k", b'{"n": 0}')
        headers = whole("ce_", specversion="1.0") | {"content-type": "application/json", "tenant": "t1"}
        assert {name: value.decode() for name, value in record.headers() or []} == headers

    def test_own_headers_never_pass_for_the_attributes(self, target: Counterpart) -> None:
        headers = {"ce_id": "forged", "CE_Type": "forged", "Content-Type": "forged", "ce_specversion": "9", "": "empty"}
        assert published(target, message(headers=headers)) == [SENT]
        [record] = target.raw()
        assert b"forged" not in [value for _, value in record.headers() or []]
        assert ("ce_specversion", b"1.0") in (record.headers() or [])
        assert ("", b"empty") in (record.headers() or [])

    def test_each_key_has_its_partition_the_same_as_javas(self, target: Counterpart) -> None:
        """The hashes are those of the tests of Kafka's own client (`Utils.murmur2`)."""
        hashes = {"21": -973932308, "foobar": -790332482, "a-little-bit-long-string": -985981536, "abc": 479470107}
        assert published(target, *(message(n, key=key) for n, key in enumerate([*hashes] * 3))) == [SENT] * 12
        partitions = {(str(record.key(), "ascii"), record.partition()) for record in target.raw()}  # type: ignore[arg-type]
        assert partitions == {(key, (found & 0x7FFFFFFF) % 4) for key, found in hashes.items()}


class TestRefused:
    def test_a_batch_says_nothing_of_the_messages_in_it(self, target: Counterpart) -> None:
        """A topic may take less than the producer puts together. Alone each is judged."""
        publisher: Any = loaded(f"{target.url(target.place)}?librdkafka.linger.ms=200")
        with closing(publisher):
            target.answer(PRODUCE, KafkaError.MSG_SIZE_TOO_LARGE)
            outcomes = publisher.publish([message(n, key="k") for n in range(10)])
            assert {outcome.code for outcome in outcomes} == {"failed_together"}
            target.answer(PRODUCE, KafkaError.MSG_SIZE_TOO_LARGE)
            [dead] = publisher.publish([message(10)])
            assert (dead.result, dead.code) == (Result.DEAD, "too_large")
            assert publisher._session.made is None, "the producer may still hold it"
            assert publisher.publish([message(11)]) == [SENT]
        assert 11 in numbers(target)

    def test_a_fatal_error_ends_the_producer_not_the_publisher(self, target: Counterpart) -> None:
        with closing(loaded(target.url(target.place), send_timeout=3)) as publisher:
            target.answer(INIT_PRODUCER_ID, KafkaError.CLUSTER_AUTHORIZATION_FAILED)
            [failed] = sent_by(publisher, message(0))
            assert failed.result in (Result.RETRY, Result.OUTAGE)
            assert publisher.publish([message(1)]) == [SENT]
        assert numbers(target) == [1]


class TestTime:
    @pytest.mark.parametrize(("limit", "interrupted"), [(1, None), (20, 0.5)])
    def test_what_failed_or_celery_has_interrupted_is_not_delivered_later(
        self, target: Counterpart, limit: float, interrupted: float | None
    ) -> None:
        target.stop()
        with closing(loaded(target.url(target.place), send_timeout=limit)) as publisher:
            with struck(interrupted, Ended):
                [outcome] = sent_by(publisher, message(0))
                assert (outcome.result, outcome.code) == (Result.OUTAGE, "connection")
            target.start()
            time.sleep(1.5)  # longer than the wait between two tries to connect
            eventually(lambda: sent_by(publisher, message(1)) == [SENT])
            assert set(numbers(target)) == {1}

    def test_what_happened_while_nothing_was_sent_does_not_hurry_the_next_send(self, target: Counterpart) -> None:
        publisher: Any = loaded(target.url(target.place), send_timeout=20)
        with closing(publisher), ExitStack() as frozen:
            assert publisher.publish([message(0)]) == [SENT]
            publisher._session.get()._errors.append(KafkaError(KafkaError._ALL_BROKERS_DOWN))
            frozen.enter_context(target.frozen())
            threading.Timer(3, frozen.close).start()  # longer than all brokers may be down
            assert publisher.publish([message(1)]) == [SENT]

    def test_an_outage_is_given_up_before_the_time_is_up(self, target: Counterpart) -> None:
        with closing(loaded(target.url_at(free_port()), send_timeout=11)) as publisher, within(2):
            [outcome] = sent_by(publisher, message(0))
        assert outcome.code == "connection"


class TestTheLibrary:
    def test_gets_a_password_that_changes_with_each_producer(self, tmp_path: Path) -> None:
        (tmp_path / "password").write_text("first")
        password = {"password": {"file": str(tmp_path / "password")}}
        publisher: Any = loaded("kafka://teller@localhost:1/t", destination=password)
        with closing(publisher):
            publisher._session.get()  # librdkafka makes no producer without a password

    def test_librdkafka_writes_nothing_to_stderr(
        self, target: Counterpart, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.DEBUG)
        with closing(loaded(target.url_at(free_port()), send_timeout=1)) as publisher:
            sent_by(publisher, message(0))
        assert capfd.readouterr().err == ""
        assert len(caplog.records) < 5

    def test_gets_the_login_of_the_url_and_nothing_is_left_of_the_check(self) -> None:
        before = threads()
        publisher: Any = load(*configured("kafka://teller:r%69ght@localhost:1/t?tls=true&sasl=SCRAM-SHA-512"))
        login = ("SASL_SSL", "SCRAM-SHA-512", "teller", "right")
        names = ("security.protocol", "sasl.mechanism", "sasl.username", "sasl.password")
        assert tuple(publisher._conf[name] for name in names) == login
        eventually(lambda: threads() <= before)


def threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))
