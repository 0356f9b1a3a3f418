"""The command line, run in this process against a ledger of the test's own."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from prepared import Ledger, prepared
from safepoint.cli import main
from safepoint.config.settings import reset


@dataclass(frozen=True)
class Ran:
    """What one call of the command line came to."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """The JSON document on standard output."""
        return json.loads(self.out)


@pytest.fixture
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[pytest.MonkeyPatch]:
    """An environment that says nothing of Safepoint, in an empty folder."""
    for name in [name for name in os.environ if name.startswith("SAFEPOINT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("SAFEPOINT_LOG", "console")  # what a verb sets for its children is undone with it
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SAFEPOINT_HOME", str(tmp_path / "home"))
    reset()
    yield monkeypatch
    reset()


@pytest.fixture
def run(clean: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """`run("runs", "--json")`: the exit code, and what was printed."""

    def call(*arguments: object) -> Ran:
        reset()
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        printed = capfd.readouterr()
        return Ran(int(ended.value.code or 0), printed.out, printed.err)

    return call


@pytest.fixture
def ledger(ledger_url: str, clean: pytest.MonkeyPatch) -> Iterator[Ledger]:
    """A ledger with a live node, which is the configured one."""
    clean.setenv("SAFEPOINT_LEDGER_URL", ledger_url)
    with prepared(ledger_url) as found:
        yield found
