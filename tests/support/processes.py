"""Processes that behave like Docker containers, so that pytest-celery's own components start, kill and restart them.

Without a Docker engine a worker is a local process in a group of its own. With SAFEPOINT_TEST_IMAGE and an engine that
answers, the same tests run the same command in containers of that image, on the host's network.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol, cast
from uuid import uuid4

from celery import Celery
from pytest_celery import CeleryTestBroker, CeleryTestContainer, CeleryTestWorker, CeleryWorkerContainer

__all__ = ["BrokerNode", "Container", "LocalProcess", "WorkerNode", "make_container"]

SUPPORT = Path(__file__).parent


class Container(Protocol):
    """What is used of a docker container; `pause` freezes every process in it."""

    @property
    def id(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def status(self) -> str: ...
    @property
    def attrs(self) -> dict[str, Any]: ...

    def reload(self) -> None: ...
    def logs(self) -> bytes: ...
    def kill(self, signal: str | int | None = None) -> None: ...
    def pause(self) -> None: ...
    def unpause(self) -> None: ...
    def restart(self, timeout: float = 10) -> None: ...
    def exec_run(self, cmd: str | Sequence[str]) -> tuple[int, bytes]: ...
    def remove(self, *, force: bool = False) -> None: ...


class LocalProcess:
    """A local process with a container's manners: SIGKILL ends all of it, any other signal goes to its main process."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str], folder: Path, *, name: str = "worker") -> None:
        self.id = uuid4().hex
        self.name = f"{name}-{self.id[:6]}"
        self.command = [part.replace("{id}", self.id[:12]) for part in command]
        # What a killed pool leaves in the folder for temporary files goes with the test's own.
        own = {"PYTHONUNBUFFERED": "1", "CONTAINER_ID": self.id[:12], "TMPDIR": str(folder)}
        self.env = {**os.environ, **own, **env}
        self.folder = folder
        self.log = folder / f"{self.name}.log"
        self.attrs = {
            "NetworkSettings": {"Networks": {}, "Ports": {}},
            "HostConfig": {"PortBindings": None},
            "Config": {"Env": [f"{key}={value}" for key, value in env.items()], "Hostname": self.id[:12]},
        }
        self._process: subprocess.Popen[bytes] | None = None
        self._log_starts = 0  # where the log of the present start begins

    @property
    def pid(self) -> int:
        """The main process."""
        assert self._process is not None, "not started"
        return self._process.pid

    @property
    def status(self) -> str:
        """What docker calls it: created, running or exited."""
        if self._process is None:
            return "created"
        return "running" if self._process.poll() is None else "exited"

    @property
    def exit_code(self) -> int | None:
        """How the main process ended, if it did; negative is a signal."""
        return None if self._process is None else self._process.poll()

    def start(self) -> None:
        """Start the command in a process group of its own."""
        with self.log.open("ab") as log:
            self._log_starts = log.tell()
            self._process = subprocess.Popen(
                self.command, env=self.env, cwd=self.folder, stdout=log, stderr=log, start_new_session=True
            )

    def reload(self) -> None:
        """Look again; a process needs no asking."""

    def logs(self) -> bytes:
        """Everything that this start has written, standard error included."""
        with self.log.open("rb") as log:
            log.seek(self._log_starts)
            return log.read()

    def children(self) -> set[int]:
        """The pool's processes."""
        return {int(pid) for pid in Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()}

    def kill(self, signal: str | int | None = None) -> None:
        """Send a signal by name or number; without one it is SIGKILL."""
        number = _number(signal)
        if number == _number("SIGKILL"):
            self._signal_group(number)
            self.wait()
        else:
            os.kill(self.pid, number)

    def pause(self) -> None:
        """Freeze every process of the group."""
        self._signal_group(signal.SIGSTOP)

    def unpause(self) -> None:
        """Let a frozen group go on."""
        self._signal_group(signal.SIGCONT)

    def wait(self, timeout: float = 30) -> int:
        """Wait for the main process to end and return its exit code."""
        assert self._process is not None, "not started"
        return self._process.wait(timeout)

    def restart(self, timeout: float = 10) -> None:
        """Stop politely, then not, and start again."""
        if self.status == "running":
            os.kill(self.pid, signal.SIGTERM)
            try:
                self.wait(timeout)
            except subprocess.TimeoutExpired:
                self.kill("SIGKILL")
        self.start()

    def exec_run(self, cmd: str | Sequence[str]) -> tuple[int, bytes]:
        """Run a command beside the process, in its environment."""
        command = shlex.split(cmd) if isinstance(cmd, str) else list(cmd)
        done = subprocess.run(
            command, env=self.env, cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
        )
        return done.returncode, done.stdout

    def remove(self, *, force: bool = False) -> None:
        """End all of it, frozen or not."""
        if self._process is not None:
            self._signal_group(signal.SIGCONT)
            self._signal_group(signal.SIGKILL)
            self._process.wait(10)

    def _signal_group(self, number: int) -> None:
        with suppress(ProcessLookupError):  # it has ended by itself, children included
            os.killpg(self.pid, number)


def _number(name: str | int | None) -> int:
    if name is None:
        return signal.SIGKILL
    if isinstance(name, int):
        return name
    return signal.Signals[name if name.startswith("SIG") else f"SIG{name}"]


def make_container(command: Sequence[str], env: Mapping[str, str], folder: Path, *, name: str = "worker") -> Container:
    """Start a command: in a container of SAFEPOINT_TEST_IMAGE if that is set, else as a local process."""
    image = os.environ.get("SAFEPOINT_TEST_IMAGE")
    if image is None:
        process = LocalProcess(command, env, folder, name=name)
        process.start()
        return process
    import docker

    identity = uuid4().hex
    return docker.from_env().containers.run(  # type: ignore[no-any-return]  # docker ships no types
        image,
        [part.replace("{id}", identity[:12]).replace(sys.executable, "python") for part in command],
        name=f"{name}-{identity[:6]}",
        hostname=identity[:12],
        environment=dict(env),
        volumes={path: {"bind": path, "mode": "rw"} for path in (str(folder), str(SUPPORT))},
        network_mode="host",
        detach=True,
    )


class _WorkerContainer(CeleryWorkerContainer):
    """pytest-celery's wrapper, for a container that exists already."""

    prompt = "ready."

    def __init__(self, container: Container) -> None:
        super().__init__(container)
        self.raw = container

    @property
    def ready_prompt(self) -> str:
        return self.prompt

    def ready(self, timeout: float = 60) -> bool:
        """Wait for the worker's word, looking much more often than pytest-celery does."""
        ends = time.monotonic() + timeout
        while self.prompt not in self.logs():
            if self.status == "exited" or time.monotonic() > ends:
                raise AssertionError(f"{self.name} is not ready:\n{self.logs()[-4000:]}")
            time.sleep(0.05)
        return True

    def teardown(self) -> None:
        self.raw.remove(force=True)


class WorkerNode(CeleryTestWorker):
    """A worker: pytest-celery's node, with freezing, and with the pool's processes where they are local."""

    def __init__(self, container: Container, app: Celery | None = None) -> None:
        super().__init__(_WorkerContainer(container), cast("Celery", app))  # pytest-celery sets it when it is ready
        self.raw = container

    @property
    def process(self) -> LocalProcess:
        """The local process; a test that needs it cannot run on containers."""
        assert isinstance(self.raw, LocalProcess), "this test looks at local processes"
        return self.raw

    def pause(self) -> None:
        """Freeze the worker and its pool."""
        self.raw.pause()

    def unpause(self) -> None:
        """Let it go on."""
        self.raw.unpause()

    def hostname(self) -> str:
        """The node name that the command line gave."""
        return f"{self.worker_name}@{self.container.id[:12]}"

    @property
    def worker_name(self) -> str:
        """The part before the @."""
        return "worker"


class BrokerNode(CeleryTestBroker):
    """A broker that runs already, known by its URL."""

    def __init__(self, url: str, *, kill: Callable[[], None] | None = None) -> None:
        super().__init__(_ExternalContainer(url))
        self._kill = kill

    def kill(self, signal: str | int = "SIGKILL", reload_container: bool = True) -> None:
        """End the server, where the test owns it."""
        assert self._kill is not None, "this broker belongs to others"
        self._kill()


class _ExternalContainer(CeleryTestContainer):
    def __init__(self, url: str) -> None:
        super().__init__(LocalProcess([], {}, Path.cwd(), name="broker"))
        self._url = url

    @property
    def celeryconfig(self) -> dict[str, str]:
        return {"url": self._url, "host_url": self._url}

    def ready(self) -> bool:
        return True
