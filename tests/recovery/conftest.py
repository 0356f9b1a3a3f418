"""The scan and its verdicts, on a real ledger."""

from ledger_fixtures import *  # noqa: F403  # pytest finds fixtures by their names in a conftest
