"""Faults in the publishers: what they send, what they make of answers, and what they leave behind for the next send."""

from __future__ import annotations

from tests.mutants import Fault

D = "outbox_tasks/destinations"
T = "tests/contract"
EVERY = f"{T}/test_every_publisher.py"


def second_round(kind: str, *names: str) -> str:
    """The tests of one publisher's second round."""
    return " ".join(f"{EVERY}::TestTheSecondRound::{name}[{kind}]" for name in names)


def after_a_time_limit(kind: str) -> str:
    name = "test_after_a_time_limit_no_answer_of_the_batch_before_counts"
    return second_round(f"{kind}-celery", name) + " " + second_round(f"{kind}-own", name)


FAULTS = [
    Fault(
        f"{D}/redis_stream/publisher.py",
        "        if not (self._answered and _is_idle(connection)):\n",
        "        if not _is_idle(connection):\n",
        f"{T}/test_redis_stream.py {after_a_time_limit('redis+stream')}",
        "a connection is used again although answers are still to come: lost messages count as sent",
    ),
    Fault(
        f"{D}/redis_stream/publisher.py",
        "        return refused | sent | dict.fromkeys(_behind(messages, sent), Outcome.behind())",
        "        return refused | sent",
        f"{T}/test_redis_stream.py",
        "what is behind a refused message of its key counts as refused, and spends an attempt",
    ),
    Fault(
        f"{D}/redis_stream/publisher.py",
        'trim = ["MAXLEN", "~", str(maxlen)] if maxlen else []',
        "trim: list[str] = []",
        f"{T}/test_redis_stream.py",
        "a stream with maxlen grows for ever",
    ),
    Fault(
        f"{D}/kombu/rabbit.py",
        "        self._returned.clear()\n",
        "",
        f"{T}/test_kombu_queue.py::TestRabbit::test_only_the_unroutable_messages_of_a_batch_are_held_back",
        "a message that came back once is unroutable for ever, also when it was delivered",
    ),
    Fault(
        f"{D}/kombu/rabbit.py",
        "(0, self._exchange, key, True, False)",
        "(0, self._exchange, key, False, False)",
        f"{T}/test_kombu_queue.py::TestRabbit::test_only_the_unroutable_messages_of_a_batch_are_held_back",
        "without mandatory RabbitMQ drops what no queue takes, and it counts as sent",
    ),
    Fault(
        f"{D}/kombu/rabbit.py",
        "        self._channel.confirm_select()\n        self._tag = 0\n",
        "        self._channel.confirm_select()\n",
        f"{T}/test_kombu_queue.py::TestRabbit::test_a_refused_message_is_the_only_one_that_is_dead",
        "in a second channel the broker counts from one again, and confirms are given to other messages",
    ),
    Fault(
        f"{D}/kombu/virtual.py",
        "            if not about_this_one:\n                raise\n",
        "            if outcome.result is Result.OUTAGE:\n                raise\n",
        second_round("azurestoragequeues-celery", "test_after_a_time_limit_no_answer_of_the_batch_before_counts"),
        "after a Celery time limit it goes on with the next message, past the lease",
    ),
    Fault(
        f"{D}/kombu/virtual.py",
        'ssl["ssl_check_hostname"] = bool(ssl["ssl_cert_reqs"])',
        'ssl["ssl_check_hostname"] = False',
        f"{T}/test_tls.py::TestDestinations",
        "rediss:// takes any certificate that somebody has signed, whatever name is in it",
    ),
    Fault(
        f"{D}/celery_task/publisher.py",
        "            mandatory=task.mandatory,\n",
        "",
        f"{T}/test_celery_task.py::TestRabbitMQ",
        "a task that must have a queue is dropped by RabbitMQ, and counts as sent",
    ),
    Fault(
        f"{D}/celery_task/publisher.py",
        "headers |= own_headers(message) | trace_headers(message)",
        "headers |= own_headers(message)",
        f"{T}/test_celery_task.py",
        "tracers of Celery do not find the trace of the writer",
    ),
    Fault(
        f"{D}/celery_task/publisher.py",
        "            expiration=expiration,\n",
        "",
        f"{T}/test_celery_task.py",
        "stored tasks are run after they have expired",
    ),
    Fault(
        f"{D}/celery_task/publisher.py",
        "    while error is not None:\n",
        "    if error is not None:\n",
        f"{EVERY}::TestTrouble::test_what_somebody_may_mend[celery]",
        "a wrong password of the tasks' broker is told as a connection that failed",
    ),
    Fault(
        f"{D}/kafka/publisher.py",
        "            except BaseException:  # a time limit, for example: nothing may be sent afterwards\n"
        "                self.close()\n                raise\n",
        "            except BaseException:\n                raise\n",
        f"{T}/test_kafka.py::TestTime {after_a_time_limit('kafka')}",
        "after a Celery time limit librdkafka goes on, and sends what another worker may have by now",
    ),
    Fault(
        f"{D}/kafka/publisher.py",
        "            if session.troubled:\n                self.close()\n",
        "",
        f"{T}/test_kafka.py",
        "a producer is used again after a failure, with lost messages in it",
    ),
    Fault(
        f"{D}/kafka/session.py",
        "        self._errors.clear()\n",
        "",
        f"{T}/test_kafka.py",
        "what happened while nothing was sent ends the next send too early",
    ),
    Fault(
        f"{D}/mqtt/publisher.py",
        "        except BaseException:  # such as a time limit: half a packet may be sent\n"
        "            self._drop()\n            raise\n",
        "        except BaseException:\n            raise\n",
        after_a_time_limit("mqtt"),
        "after a Celery time limit old acknowledgements count for the next messages",
    ),
    Fault(
        f"{D}/mqtt/publisher.py",
        ".send(self.topic, self._retain, entries",
        ".send(self.topic, False, entries",
        f"{T}/test_mqtt.py",
        "retain=true retains nothing",
    ),
    Fault(
        f"{D}/mqtt/link.py",
        "            self.client.tls_set_context(ssl.create_default_context())",
        "            self.client.tls_set_context(ssl._create_unverified_context())",
        f"{T}/test_tls.py::TestDestinations",
        "mqtts:// tells its password to anybody",
    ),
    Fault(
        f"{D}/nats/publisher.py",
        'result[f"h_{name}" if taken else name] = value',
        "result[name] = value",
        f"{T}/test_nats_jetstream.py",
        "a message's own header Nats-Rollup deletes the stream",
    ),
    Fault(
        f"{D}/nats/link.py",
        "                options[name] = self._secured(options[name])\n",
        "                pass\n",
        f"{T}/test_tls.py::TestDestinations::test_a_server_of_nats_that_offers_none_is_told_nothing",
        "a server without TLS is told the password, although the URL says tls=true",
    ),
    Fault(
        f"{D}/http/options.py",
        'login = {basic, url.password or url.username, bearer or "", *secrets}',
        'login = {url.password or url.username, bearer or "", *secrets}',
        f"{T}/test_http_events.py::TestTheAnswer",
        "an endpoint that repeats the request shows the login, in base64, in errors and on the page",
    ),
    Fault(
        f"{D}/http/publisher.py",
        "            if run and outcomes[place].result in self._passing:\n",
        "            if run:\n",
        f"{T}/test_http_events.py::TestKeys",
        "messages of a key overtake one that failed",
    ),
    Fault(
        f"{D}/http/network.py",
        "if self._private or is_public(address)]",
        "]",
        f"{T}/test_http_events.py::TestAddresses",
        "a webhook can read what is inside the private network",
    ),
    Fault(
        f"{D}/grpc/publisher.py",
        "        return [answers.get(entry.id, missing) for entry in entries]",
        "        return [answers.get(entry.id, Outcome.sent()) for entry in entries]",
        f"{T}/test_grpc_events.py::TestTheAnswerForOneMessage",
        "a message of which the receiver says nothing counts as sent",
    ),
    Fault(
        f"{D}/grpc/publisher.py",
        "            request.headers[message.id].values.update(headers)\n",
        "            request.headers[message.id].values.update({})\n",
        f"{EVERY}::TestWhatArrives::test_all_that_belongs_to_a_message_and_nothing_else[grpc]",
        "a message's own headers do not arrive",
    ),
    Fault(
        f"{D}/pubsub/publisher.py",
        "                waiting.extend((call[: len(call) // 2], call[len(call) // 2 :]))\n",
        "                waiting.append(call[: len(call) // 2])\n",
        f"{T}/test_pubsub.py::TestTheStatusOfARequest",
        "half of the messages of a refused request have no outcome",
    ),
    Fault(
        f"{D}/pubsub/publisher.py",
        "        except BaseException:  # such as a time limit; nobody waits for the requests under way any more\n"
        "            self.close()\n            raise\n",
        "        except BaseException:\n            raise\n",
        f"{T}/test_pubsub.py",
        "after a Celery time limit requests go on that nobody waits for",
    ),
    Fault(
        f"{D}/pubsub/publisher.py",
        "            self.close()  # the next connection looks for credentials again\n",
        "            pass\n",
        f"{T}/test_pubsub.py {T}/test_pubsub_credentials.py::test_a_key_that_was_replaced_is_found",
        "a key that was replaced is not found until the worker restarts",
    ),
    Fault(
        f"{D}/service_bus/link.py",
        "if 0 < limit < size else None",
        "if 0 < limit <= size else None",
        f"{T}/test_service_bus.py::TestSizes",
        "a message of just the largest size is dead",
    ),
    Fault(
        f"{D}/service_bus/publisher.py",
        '        self.cut = self.cut + 1 if outcome.code == "detached" else 0\n',
        '        self.cut = self.cut + 1 if outcome.code == "detached" else self.cut\n',
        f"{T}/test_service_bus.py::TestTheLink",
        "two closed links in a batch are an outage, though others between them were sent",
    ),
    Fault(
        f"{D}/service_bus/publisher.py",
        "        session_id=group if sessions else None,\n",
        "        session_id=None,\n",
        f"{T}/test_service_bus.py::TestSessionsAndPartitions",
        "queues that need sessions take nothing, and keys have no order",
    ),
    Fault(
        f"{D}/aws/publishers.py",
        "                self.close()  # their threads may hang for ever, and the next messages need some\n",
        "",
        f"{T}/test_aws.py",
        "answers that drip hold all threads, and nothing is sent until the worker restarts",
    ),
    Fault(
        f"{D}/aws/publishers.py",
        "self.close()  # the client keeps its credentials,",
        "pass  # the client keeps its credentials,",
        f"{T}/test_aws.py",
        "credentials that were mended are not found until the worker restarts",
    ),
    Fault(
        f"{D}/aws/publishers.py",
        "        return [refusals.get(str(n), UNCONFIRMED) for n in range(len(batch))]",
        "        return [refusals.get(str(n), Outcome.sent()) for n in range(len(batch))]",
        f"{T}/test_aws.py",
        "a message that the answer does not mention counts as sent",
    ),
    Fault(
        f"{D}/aws/publishers.py",
        '"MessageDeduplicationId": message.id}',
        '"MessageDeduplicationId": message.key or message.id}',
        f"{T}/test_aws.py",
        "a FIFO queue takes the second message of a key for a copy of the first",
    ),
    Fault(
        f"{D}/aws/publishers.py",
        '        values["headers"] = json.dumps(own)\n',
        '        values["headers"] = json.dumps({})\n',
        f"{EVERY}::TestWhatArrives::test_all_that_belongs_to_a_message_and_nothing_else[sns] {T}/test_aws.py",
        "a message's own headers do not arrive",
    ),
    Fault(
        f"{D}/common/grpc_status.py",
        '    StatusCode.UNAUTHENTICATED: (Result.OUTAGE, "unauthorized"),\n',
        "",
        f"{T}/test_pubsub.py::TestTheStatusOfARequest {T}/test_grpc_events.py::TestTheStatusOfACall",
        "with a wrong password each message spends its attempts and dies",
    ),
    Fault(
        f"{D}/__init__.py",
        "    return destination.claim_check is None and bool(_says",
        "    return bool(_says",
        "tests/unit/test_claim_check.py",
        "with a claim check several messages of a key are given at once, and one that could not be stored is overtaken",
    ),
]
