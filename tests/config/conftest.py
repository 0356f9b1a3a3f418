"""Users of an embedded stack: processes of their own that join, tell their URLs and leave when they are told to."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from safepoint.config import embedded, identity

USER = """
import json, sys
from pathlib import Path
from safepoint.config import embedded
with embedded.ensure(Path(sys.argv[1])) as stack:
    print(json.dumps([stack.ledger_url, stack.broker_url]), flush=True)
    sys.stdin.readline()
"""


class User:
    """One process that uses the stack."""

    def __init__(self, home: Path, *, who: identity.Identity | None = None) -> None:
        command = [sys.executable, "-c", USER, str(home)]
        if who is not None:
            command = identity.command_as(who, home.parent, command)
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )

    @property
    def urls(self) -> tuple[str, str]:
        """The ledger's and the broker's URL, once they are there."""
        assert self.process.stdout is not None
        ledger, broker = json.loads(self.process.stdout.readline())
        return ledger, broker

    def leave(self) -> None:
        """Leave in an orderly way."""
        self.process.communicate("\n", timeout=60)
        assert self.process.returncode == 0

    def kill(self) -> None:
        """Be killed."""
        self.process.kill()
        self.process.communicate()

    def interrupt(self) -> None:
        """Get what a Ctrl-C gives to everything in the foreground."""
        os.killpg(self.process.pid, signal.SIGINT)
        self.process.communicate(timeout=60)


@pytest.fixture
def new_home() -> Iterator[Path]:
    """A home that does not exist yet, in a folder that everybody may pass through."""
    folder = Path(tempfile.mkdtemp(prefix="safepoint-home-"))
    folder.chmod(0o755)
    yield folder / "home"
    embedded.stop(folder / "home")
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def made_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home that has been used once, to be copied."""
    home = tmp_path_factory.mktemp("made") / "home"
    embedded.ensure(home).close()
    return home


@pytest.fixture
def home(made_home: Path, new_home: Path) -> Path:
    """A home with data that nobody uses: copying it takes a twentieth of the time that making it does."""
    subprocess.run(["cp", "-a", str(made_home), str(new_home)], check=True)
    return new_home


@pytest.fixture
def join(new_home: Path) -> Iterator[Callable[..., User]]:
    """`join()` starts a user of the home."""
    users: list[User] = []

    def join(**options: identity.Identity) -> User:
        users.append(User(new_home, **options))
        return users[-1]

    yield join
    for user in users:
        if user.process.poll() is None:
            user.kill()
