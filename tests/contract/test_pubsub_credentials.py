"""Google Cloud Pub/Sub with credentials: TLS, keys of service accounts, and what there is instead of them.

What gRPC trusts is settled once for all of a process, so the cases are in processes of their own.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from google.oauth2 import service_account

from outbox_tasks.local.ports import LOOPBACK
from outbox_tasks.model import Result
from tests.certificates import self_signed
from tests.contract.counterparts.pubsub import PROJECT, Counterpart
from tests.contract.processes import in_a_process
from tests.contract.tasks import sent_before_and_after_it_was_mended, sent_with

SCOPE = "https://www.googleapis.com/auth/pubsub"
EMAIL = f"relay@{PROJECT}.iam.gserviceaccount.com"


def pem(key: rsa.RSAPrivateKey) -> bytes:
    kind = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, kind, serialization.NoEncryption())


class Files:
    """What lies around: certificates, and keys of service accounts."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        account, other = (rsa.generate_private_key(65537, 2048) for _ in range(2))
        self_signed(directory / "cert.pem", "localhost")
        public = serialization.PublicFormat.SubjectPublicKeyInfo
        (directory / "public.pem").write_bytes(account.public_key().public_bytes(serialization.Encoding.PEM, public))
        for name, key in (("right", account), ("wrong", other)):
            self.account(name, pem(key).decode())
        self.account("broken", "hunter2")
        (directory / "garbage.json").write_text("hunter2")
        (directory / "list.json").write_text('["hunter2"]')

    def account(self, name: str, key: str) -> None:
        facts = {
            "type": "service_account", "project_id": PROJECT, "private_key_id": name, "private_key": key,
            "client_email": EMAIL, "token_uri": "https://nowhere.invalid/token",
        }  # fmt: skip
        (self.directory / f"{name}.json").write_text(json.dumps(facts))

    def __getitem__(self, name: str) -> str:
        return str(self.directory / name)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("google"))


@pytest.fixture(scope="module")
def tls_server(files: Files) -> Iterator[Counterpart]:
    with Counterpart(files["cert.pem"], files["cert.pem"], EMAIL, files["public.pem"]) as made:
        made.place = "orders"
        yield made


def run(server: Counterpart, files: Files, task: Callable[..., Any], *args: Any, **env: str) -> Any:
    """What the task returns in a process that knows nobody's credentials but those of its arguments and `env`."""
    known = re.compile("GOOGLE|GCE_|PUBSUB|PROXY", re.IGNORECASE)
    plain = {name: value for name, value in os.environ.items() if not known.search(name)}
    plain |= {"HOME": files["."], "NO_GCE_CHECK": "true", "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": files["cert.pem"]}
    log = files.directory / "log"
    found = in_a_process(task, *args, log=log, env={**plain, **env})
    written = repr(found) + log.read_text()
    assert "PRIVATE KEY" not in written
    assert "hunter2" not in written
    return found


def url(server: Counterpart, options: str = "") -> str:
    return f"pubsub://{PROJECT}/orders?endpoint=localhost:{server.port}{options}"


def sent(server: Counterpart, files: Files, options: str = "", timeout: float = 5, **env: str) -> dict[str, Any]:
    """What becomes of messages that a process sends."""
    [found] = run(server, files, sent_with, [url(server, options)], [None], timeout, **env)
    return dict(found)


def sent_by(server: Counterpart, files: Files, names: Sequence[str], default: bool) -> dict[str, dict[str, Any]]:
    """What becomes of messages that a process sends with each of these keys, which its URL or its environment names."""
    urls = [url(server, "" if default else f"&credentials={files[name]}") for name in names]
    defaults = [files[name] if default else None for name in names]
    return dict(zip(names, run(server, files, sent_with, urls, defaults, 5), strict=True))


def codes(found: dict[str, Any]) -> list[tuple[str, str | None]]:
    return [(result, code) for result, code, _ in found["told"]]


SENT = [("sent", None), ("dead", "bad_headers"), ("sent", None), ("sent", None)]
UNAUTHORIZED = [("outage", "unauthorized"), ("dead", "bad_headers"), *[("outage", "unauthorized")] * 2]


NO_GOOD = {
    "wrong.json": "invalid authentication credentials",
    "hunter2.json": "No such file",
    "garbage.json": "no usable credentials",
    "list.json": "no usable credentials",
    "broken.json": "no usable credentials",
}


@pytest.mark.parametrize("default", [False, True], ids=["of the URL", "of the environment"])
def test_the_key_of_a_service_account_signs_and_one_that_is_no_good_is_an_outage(
    tls_server: Counterpart, files: Files, default: bool
) -> None:
    """Nobody else is asked: the key names a token server that does not exist."""
    found = sent_by(tls_server, files, ["right.json", *NO_GOOD], default)
    assert codes(found["right.json"]) == SENT, found
    for name, reason in NO_GOOD.items():
        assert codes(found[name]) == UNAUTHORIZED, name
        assert default or reason in found[name]["told"][0][2]


def test_a_key_that_was_replaced_is_found(tls_server: Counterpart, files: Files) -> None:
    shutil.copy(files["wrong.json"], files["used+.json"])
    used = url(tls_server, f"&credentials={files['used+.json']}")
    found = run(tls_server, files, sent_before_and_after_it_was_mended, used, files["right.json"], files["used+.json"])
    assert found == [Result.OUTAGE, Result.SENT]


def test_no_credentials_are_an_outage(tls_server: Counterpart, files: Files) -> None:
    found = sent(tls_server, files)
    assert codes(found) == UNAUTHORIZED
    assert "DefaultCredentialsError" in found["told"][0][2]


def test_a_certificate_that_is_not_trusted_gets_nothing(tls_server: Counterpart, files: Files, tmp_path: Path) -> None:
    other = self_signed(tmp_path / "other.pem", "localhost")
    options = f"&credentials={files['right.json']}"
    found = sent(tls_server, files, options, GRPC_DEFAULT_SSL_ROOTS_FILE_PATH=str(other))
    assert codes(found) == [("outage", "connection"), ("dead", "bad_headers"), *[("outage", "connection")] * 2]


@contextmanager
def machine(token: str | None, *, silent: bool = False) -> Iterator[dict[str, Any]]:
    """The environment on a machine of Google's, whose metadata server has this token or, with None, knows no service
    account; or does not answer."""
    ended = threading.Event()

    class Metadata(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if silent:
                ended.wait(60)
            known = token is not None or "service-accounts" not in self.path
            body = b"shop-project"
            if "/token" in self.path:
                body = json.dumps({"access_token": token, "expires_in": 3600, "token_type": "Bearer"}).encode()
            elif "recursive=true" in self.path:
                body = json.dumps({"email": EMAIL, "scopes": []}).encode()
            self.send_response(200 if known else 404)
            self.send_header("Metadata-Flavor", "Google")
            self.send_header("Content-Type", "text/plain" if body == b"shop-project" else "application/json")
            self.end_headers()
            self.wfile.write(body if known else b"hunter2")

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer((LOOPBACK, 0), Metadata)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    place = f"{LOOPBACK}:{server.server_address[1]}"
    try:
        yield {
            "NO_GCE_CHECK": "false",
            "GCE_METADATA_HOST": place,
            "GCE_METADATA_IP": place,
            "GCE_METADATA_ROOT": place,
        }
    finally:
        ended.set()
        server.shutdown()
        server.server_close()


def test_a_machine_has_a_service_account(tls_server: Counterpart, files: Files) -> None:
    account = service_account.Credentials.from_service_account_file(files["right.json"], scopes=[SCOPE])
    account = account.with_always_use_jwt_access(True)
    account._create_self_signed_jwt(None)
    account.refresh(None)
    with machine(account.token) as env:
        assert codes(sent(tls_server, files, **env)) == SENT


def test_a_machine_without_a_service_account_is_an_outage(tls_server: Counterpart, files: Files) -> None:
    with machine(None) as env:
        found = sent(tls_server, files, **env)
    assert codes(found) == UNAUTHORIZED
    assert "there is no access token" in found["told"][0][2]


def test_a_machine_that_says_nothing_takes_no_more_than_the_time_limit(tls_server: Counterpart, files: Files) -> None:
    """Google's library alone would wait for nine seconds and more."""
    with machine(None, silent=True) as env:
        found = sent(tls_server, files, timeout=1, **env)
    assert codes(found) == [("outage", "timeout"), ("dead", "bad_headers"), *[("outage", "timeout")] * 2]
    assert found["taken"] < 1.5
