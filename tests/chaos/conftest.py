"""Fleets of real processes: one a broker, whose relay and survivor live through every test, or one for a test."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest
from crashes import Crew
from effect_deaths import Deaths
from fleet import POOL, Fleet
from servers import ValkeyServer, new_database, with_path
from witness import Witness


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the deaths of pool children where no pool has any."""
    if POOL != "threads":
        return
    childless = [item for item in items if item.get_closest_marker("children") or _target(item) == "child"]
    config.hook.pytest_deselected(items=childless)
    items[:] = [item for item in items if item not in childless]


def _target(item: pytest.Item) -> object:
    called = getattr(item, "callspec", None)
    return called and called.params.get("target")


@pytest.fixture(scope="session")
def new_valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], str]]:
    """`new_valkey()` returns the URL of an empty database of a Valkey that serves these tests alone."""
    server = ValkeyServer(tmp_path_factory.mktemp("valkey"))
    server.start()
    numbers = iter(range(256))
    yield lambda: with_path(server.url, str(next(numbers)))
    server.kill()


@pytest.fixture(scope="session")
def new_fleet(
    postgres_url: str, template: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., Fleet]]:
    """`new_fleet(broker_url, **env)` makes a fleet with a ledger of its own; all of it ends with the session."""
    with contextlib.ExitStack() as stack:

        def make(broker_url: str, **env: str) -> Fleet:
            ledger_url = stack.enter_context(new_database(postgres_url, template))
            fleet = Fleet(tmp_path_factory.mktemp("fleet"), ledger_url, broker_url, env)
            stack.callback(fleet.assert_no_deadlock)
            stack.callback(fleet.close)
            return fleet

        yield make


@pytest.fixture(scope="session")
def witness(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Witness]:
    """The outside world of these tests, which writes down what it does."""
    witness = Witness.start(tmp_path_factory.mktemp("witness"))
    yield witness
    witness.close()


@pytest.fixture(scope="session", params=["valkey", pytest.param("rabbitmq", marks=pytest.mark.rabbitmq)])
def crew(request: pytest.FixtureRequest, new_fleet: Callable[..., Fleet], witness: Witness) -> Iterator[Crew]:
    """A relay and a survivor on either broker."""
    new_broker = {"valkey": "new_valkey", "rabbitmq": "new_vhost"}[request.param]
    crew = Crew.start(new_fleet(request.getfixturevalue(new_broker)(), OUTSIDE=witness.url))
    yield crew
    crew.fleet.close()


@pytest.fixture(scope="session")
def deaths(crew: Crew, witness: Witness) -> Deaths:
    """The deaths over effects, had once on each broker."""
    return Deaths(crew, witness)


@pytest.fixture
def fleet(new_valkey: Callable[[], str], new_fleet: Callable[..., Fleet]) -> Iterator[Fleet]:
    """A fleet of the test's own, with no process yet."""
    fleet = new_fleet(new_valkey())
    yield fleet
    fleet.close()
