"""Google Cloud Pub/Sub with credentials: TLS, keys of service accounts, and what there is instead of them.

What gRPC trusts is settled once for all of a process, so the cases are in processes of their own.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from outbox_tasks.local.ports import LOOPBACK
from tests.certificates import self_signed
from tests.contract.counterparts.pubsub import PROJECT, Counterpart
from tests.contract.processes import in_a_process
from tests.contract.tasks import sent_before_and_after_it_was_mended, sent_with

EMAIL = f"relay@{PROJECT}.iam.gserviceaccount.com"
SENT, UNAUTHORIZED, TIMEOUT = ("sent", None), ("outage", "unauthorized"), ("outage", "timeout")
DEAD = ("dead", "bad_headers")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a certificate, and the keys of service accounts."""
    directory = tmp_path_factory.mktemp("google")
    self_signed(directory / "cert.pem", "localhost")
    account, other = (rsa.generate_private_key(65537, 2048) for _ in range(2))
    private, public = serialization.PrivateFormat.PKCS8, serialization.PublicFormat.SubjectPublicKeyInfo
    (directory / "public.pem").write_bytes(account.public_key().public_bytes(serialization.Encoding.PEM, public))
    for name, key in (("right", account), ("wrong", other), ("broken", None)):
        pem = key and key.private_bytes(serialization.Encoding.PEM, private, serialization.NoEncryption()).decode()
        facts = {
            "type": "service_account", "project_id": PROJECT, "private_key_id": name, "private_key": pem or "hunter2",
            "client_email": EMAIL, "token_uri": "https://nowhere.invalid/token",
        }  # fmt: skip
        (directory / f"{name}.json").write_text(json.dumps(facts))
    (directory / "garbage.json").write_text("hunter2")
    return directory


@pytest.fixture(scope="module")
def tls_server(files: Path) -> Iterator[Counterpart]:
    with Counterpart((files / "cert.pem", EMAIL, files / "public.pem")) as server:
        yield server


def run(files: Path, task: Any, *args: Any, **env: str) -> Any:
    """What the task returns in a process that knows nobody's credentials but those of its arguments and `env`."""
    known = re.compile("GOOGLE|GCE_|PUBSUB|PROXY", re.IGNORECASE)
    plain = {name: value for name, value in os.environ.items() if not known.search(name)}
    plain |= {"HOME": str(files), "NO_GCE_CHECK": "true", "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": f"{files}/cert.pem"}
    answer = in_a_process(task, *args, log=files / "log", env={**plain, **env})
    written = repr(answer) + (files / "log").read_text()
    assert "PRIVATE KEY" not in written
    assert "hunter2" not in written
    return answer


def url(server: Counterpart, key: Path | None = None) -> str:
    return f"pubsub://{PROJECT}/orders?endpoint=localhost:{server.port}" + (f"&credentials={key}" if key else "")


def test_only_a_key_that_is_right_signs_and_all_else_is_an_outage(tls_server: Counterpart, files: Path) -> None:
    """Nobody else is asked: the key names a token server that does not exist."""
    names = ["right.json", "wrong.json", "hunter2.json", "garbage.json", "broken.json"]
    cases = [(url(tls_server, files / name), "") for name in names]
    cases += [(url(tls_server), str(files / name)) for name in names] + [(url(tls_server), "")]
    outcomes = run(files, sent_with, cases, 5)
    good = [SENT, DEAD, SENT]
    bad = [UNAUTHORIZED, DEAD, UNAUTHORIZED]
    assert outcomes == [good, *[bad] * 4, good, *[bad] * 5]


def test_a_key_that_was_replaced_is_found(tls_server: Counterpart, files: Path) -> None:
    shutil.copy(files / "wrong.json", files / "used.json")
    mended = run(
        files, sent_before_and_after_it_was_mended, url(tls_server, files / "used.json"), files / "right.json",
        files / "used.json",
    )  # fmt: skip
    assert mended == ["outage", "sent"]


def test_a_certificate_that_is_not_trusted_gets_nothing(tls_server: Counterpart, files: Path, tmp_path: Path) -> None:
    other = str(self_signed(tmp_path / "other.pem", "localhost"))
    cases = [(url(tls_server, files / "right.json"), "")]
    [outcomes] = run(files, sent_with, cases, 5, GRPC_DEFAULT_SSL_ROOTS_FILE_PATH=other)
    assert outcomes == [("outage", "connection"), DEAD, ("outage", "connection")]


def test_a_machine_that_says_nothing_takes_no_more_than_the_time_limit(tls_server: Counterpart, files: Path) -> None:
    """Google's library alone would ask the machine's metadata server for nine seconds and more."""
    with socket.create_server((LOOPBACK, 0)) as silent:
        place = f"{LOOPBACK}:{silent.getsockname()[1]}"
        env = {f"GCE_METADATA_{name}": place for name in ("HOST", "IP", "ROOT")}
        [outcomes] = run(files, sent_with, [(url(tls_server), "")], 1, NO_GCE_CHECK="false", **env)
    assert outcomes == [TIMEOUT, DEAD, TIMEOUT]
