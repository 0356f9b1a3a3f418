"""The pytest plugin: `safepoint_stack`, a real ledger and broker with real workers, and `crash_at`.

Both servers come from wheels and start once a session, when the first test asks for them.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from .stack import Crash, Servers, Stack

__all__ = [
    "CrashAt",
    "crash_at",
    "pytest_addoption",
    "pytest_runtest_makereport",
    "safepoint_servers",
    "safepoint_stack",
]


_SHOWN = 4_000  # characters of each log, from its end


class CrashAt(Protocol):
    """What the fixture `crash_at` gives."""

    def __call__(self, spec: str, *, target: Literal["child", "worker"] = "child") -> Crash:
        """Let the first process that comes to `point[@step][:n]` kill itself."""
        ...


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let the configuration name the modules that hold flows."""
    parser.addini("safepoint_flows", "modules that hold flows and steps, for safepoint_stack", type="args", default=[])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show what the processes of a failed test have written."""
    report = yield
    stack: Stack | None = getattr(item, "funcargs", {}).get("safepoint_stack")
    if stack is not None and report.failed:
        for process in stack.processes:
            report.sections.append((f"safepoint {process.log.stem}", process.output()[-_SHOWN:]))
    return report


@pytest.fixture(scope="session")
def safepoint_servers() -> Iterator[Servers]:
    """Start this session's PostgreSQL and Valkey, and stop them at its end."""
    from .stack import Servers  # noqa: PLC0415  # only tests that ask for the stack pay for it

    # Not pytest's own temporary folder: nobody else may enter that, and PostgreSQL never runs as root.
    home = Path(tempfile.mkdtemp(prefix="safepoint-"))
    home.chmod(0o711)
    servers = Servers(home / "home")
    try:
        yield servers
    finally:
        servers.close()
        shutil.rmtree(home, ignore_errors=True)


@pytest.fixture
def safepoint_stack(
    request: pytest.FixtureRequest,
    safepoint_servers: Servers,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Stack]:
    """Give an empty ledger and broker, to which `call.enqueue()` in the test leads, and workers to start and kill.

    The flows are those of the ini option `safepoint_flows`; a test may set `safepoint_stack.flows` before it starts a
    worker.
    """
    from ..config import settings  # noqa: PLC0415  # only tests that ask for the stack pay for it
    from ..tasks.client import close_default_client  # noqa: PLC0415  # as above
    from .stack import Stack  # noqa: PLC0415  # as above

    ledgers = safepoint_servers.ledger()
    flows = tuple(request.config.getini("safepoint_flows"))
    stack = Stack(safepoint_servers.home, tmp_path, next(ledgers), safepoint_servers.broker(), flows)
    for name, value in stack.environment.items():
        monkeypatch.setenv(name, value)
    settings.reset()
    close_default_client()
    try:
        yield stack
    finally:
        stack.stop()
        close_default_client()
        monkeypatch.undo()
        settings.reset()
        next(ledgers, None)


@pytest.fixture
def crash_at(safepoint_stack: Stack) -> CrashAt:
    """Arm a crash point for the processes that the test starts afterwards."""
    return safepoint_stack.crash_at
