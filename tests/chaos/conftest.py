"""Fleets of real processes: one for a module, with a broker and a ledger of its own, or one for a test."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest
from fleet import Fleet
from servers import ValkeyServer, new_database


@pytest.fixture(scope="module")
def module_valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Valkey for one module."""
    server = ValkeyServer(tmp_path_factory.mktemp("valkey"))
    server.start()
    yield server.url
    server.kill()


@pytest.fixture(scope="module")
def module_rabbitmq(new_vhost: Callable[[], str]) -> str:
    """A vhost for one module."""
    return new_vhost()


@pytest.fixture(scope="module")
def new_fleet(
    postgres_url: str, template: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., Fleet]]:
    """`new_fleet(broker_url, **env)` makes a fleet with a ledger of its own; all are ended with the module."""
    with contextlib.ExitStack() as stack:

        def make(broker_url: str, **env: str) -> Fleet:
            ledger_url = stack.enter_context(new_database(postgres_url, template))
            fleet = Fleet(tmp_path_factory.mktemp("fleet"), ledger_url, broker_url, env)
            stack.callback(fleet.close)
            return fleet

        yield make
