"""The ledger and its functions, on a real server."""

from ledger_fixtures import *  # noqa: F403  # pytest finds fixtures by their names in a conftest
