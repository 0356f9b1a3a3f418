"""The rules of the protocol: each test is a schedule that broke one, named by its number."""

from ledger_fixtures import *  # noqa: F403  # pytest finds fixtures by their names in a conftest
