"""Faults in the publishers: what they send, what they make of answers, and what they leave behind for the next send."""

from tests.mutants import Fault

D = "outbox_tasks/destinations"
T = "tests/contract"
EVERY = f"{T}/test_every_publisher.py"
CHECK, STORED = f"{D}/claim_check/publisher.py", "tests/unit/test_claim_check.py"

LIMIT = f"{EVERY}::TestTheSecondRound::test_after_a_time_limit_no_answer_of_the_batch_before_counts"


def time_limit(kind: str) -> str:
    """The tests of one publisher after a time limit."""
    return f"{LIMIT}[{kind}-own] {LIMIT}[{kind}-celery]"


FAULTS = [
    Fault(f"{D}/redis_stream/publisher.py", "        if not (self._answered and _is_idle(connection)):\n",
        "        if not _is_idle(connection):\n", time_limit("redis+stream"),
        "a connection is used again although answers are still to come: lost messages count as sent"),
    Fault(f"{D}/kombu/rabbit.py", "        self._returned.clear()\n", "",
        f"{T}/test_kombu_queue.py::TestRabbit::test_only_the_unroutable_messages_of_a_batch_are_held_back",
        "a message that came back once is unroutable for ever, also when it was delivered"),
    Fault(f"{D}/kombu/rabbit.py", "(0, self._exchange, key, True, False)", "(0, self._exchange, key, False, False)",
        f"{T}/test_kombu_queue.py::TestRabbit::test_only_the_unroutable_messages_of_a_batch_are_held_back",
        "without mandatory RabbitMQ drops what no queue takes, and it counts as sent"),
    Fault(f"{D}/kombu/common.py", "    raise error\n", "    return Outcome.retry(type(error).__name__, str(error))\n",
        time_limit("azurestoragequeues"),
        "after a Celery time limit it goes on with the next message, past the lease"),
    Fault(f"{D}/mqtt/link.py", "            context = ssl.create_default_context()",
        "            context = ssl._create_unverified_context()",
        f"{T}/test_tls.py::TestDestinations", "mqtts:// tells its password to anybody"),
    Fault(f"{D}/nats/link.py", "                options[name] = self._secured(options[name])\n",
        "                pass\n",
        f"{T}/test_tls.py::TestDestinations::test_a_server_of_nats_that_offers_none_is_told_nothing",
        "a server without TLS is told the password, although the URL says tls=true"),
    Fault(f"{D}/http/network.py", "if self._private or is_public(address)]", "]",
        f"{T}/test_http_events.py::TestAddresses", "a webhook can read what is inside the private network"),
    Fault(f"{D}/grpc/publisher.py", "        return [answers.get(entry.id, MISSING) for entry in entries]",
        "        return [answers.get(entry.id, Outcome.sent()) for entry in entries]",
        f"{T}/test_grpc_events.py::TestTheAnswerForOneMessage",
        "a message of which the receiver says nothing counts as sent"),
    Fault(f"{D}/pubsub/publisher.py",
        "        except BaseException:  # such as a time limit; nobody waits for the requests under way any more\n"
        "            self.close()\n            raise\n", "        except BaseException:\n            raise\n",
        f"{T}/test_pubsub.py", "after a Celery time limit requests go on that nobody waits for"),
    Fault(f"{D}/pubsub/publisher.py", "            self.close()  # the next connection looks for credentials again\n",
        "            pass\n",
        f"{T}/test_pubsub.py::test_only_a_key_that_is_right_signs_and_all_else_is_an_outage",
        "a key that was replaced is not found until the worker restarts"),
    Fault(f"{D}/aws/publishers.py",
        "                self.close()  # their threads may hang for ever, and the next messages need some\n", "",
        f"{T}/test_aws.py", "answers that drip hold all threads, and nothing is sent until the worker restarts"),
    Fault(f"{D}/__init__.py", "    return destination.claim_check is None and bool(_says", "    return bool(_says",
        STORED,
        "with a claim check several messages of a key are given at once, and an unstored one is overtaken"),
    Fault(CHECK, "        half = settings.send_timeout / 2", "        half = settings.send_timeout", STORED,
          "storing and sending take twice the time limit, and the lease ends before the send"),
    Fault(CHECK, "self._busy = [thread for thread in self._busy if thread.is_alive()]", "self._busy = []", STORED,
          "a storage that hangs gets more threads at every attempt"),
    Fault(f"{D}/aws/publishers.py", "        if sending.ended is not None:\n            return\n", "",
          f"{T}/test_aws.py", "after an outage all other requests of a batch are made"),
    Fault(f"{D}/http/network.py", "            future.cancel()\n            raise", "            raise",
          f"{T}/test_http_events.py::TestBadBehaviour", "after a time limit the rest of a batch is sent"),
    Fault(f"{D}/kombu/virtual.py", "self._connection = self._producer = None", "self._connection = None",
          time_limit("redis"), "a producer is used again: answers for lost messages count for the next ones"),
    Fault(f"{D}/nats/link.py", '        if options.get("tls"):\n            self._secured("")()\n', "",
          f"{T}/test_tls.py::TestDestinations", "without a login messages go in plaintext, in spite of tls=true"),
    Fault(f"{D}/service_bus/link.py", "if time.monotonic() - self._used > IDLE_SECONDS:", "if False:",
          f"{T}/test_service_bus.py::TestTheLink", "the first message after a pause fails"),
    Fault(f"{D}/http/publisher.py", "if outcomes[place] is IN_FLIGHT:", "if True:",
          f"{T}/test_http_events.py::TestBadBehaviour", "an answer that breaks after its status is a failure"),
    Fault(f"{D}/http/publisher.py", "finally:\n                background.stop()", "finally:\n                pass",
          f"{T}/test_http_events.py::TestConnections", "each publisher that is closed leaves a thread behind"),
]  # fmt: skip
