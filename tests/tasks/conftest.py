"""What a worker and a client are made of, on a real ledger."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from ledger_fixtures import *  # noqa: F403  # pytest finds fixtures by their names in a conftest
from safepoint import Client
from safepoint.config.settings import Settings, load


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """The settings as shipped, with a home of the test's own."""
    return load(env={"SAFEPOINT_HOME": str(tmp_path)})


@pytest.fixture
def client(ledger_url: str, settings: Settings) -> Iterator[Client]:
    """A client of the test's own ledger."""
    with Client(ledger_url, settings=settings) as opened:
        yield opened
