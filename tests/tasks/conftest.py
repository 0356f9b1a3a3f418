"""What a worker and a client are made of, on a real ledger."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from ledger_clock import Clock
from ledger_fixtures import *  # noqa: F403  # pytest finds fixtures by their names in a conftest
from ledger_verbs import Verbs
from outside import Outside
from play import Play
from safepoint import Client
from safepoint.config.settings import Settings, load
from workshop import Workshop, settings_of


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """The settings as shipped, with a home of the test's own."""
    return load(env={"SAFEPOINT_HOME": str(tmp_path)})


@pytest.fixture
def client(ledger_url: str, settings: Settings) -> Iterator[Client]:
    """A client of the test's own ledger."""
    with Client(ledger_url, settings=settings) as opened:
        yield opened


@pytest.fixture
def playing(
    crowd: Callable[[], Verbs], crowd_clock: Clock, crowded_ledger_url: str, tmp_path: Path
) -> Callable[[Outside], Play]:
    """`playing(outside)` gives a run to be played, in a world that has forgotten everything."""

    def make(outside: Outside) -> Play:
        outside.reset()
        shop = Workshop(crowded_ledger_url, settings_of(tmp_path, relay={"grace": 0.0}))
        shop.register(crowded_ledger_url)
        return Play(shop, crowd(), crowd_clock, crowded_ledger_url)

    return make
