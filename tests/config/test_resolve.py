"""Which ledger and broker a process gets."""

from __future__ import annotations

import pytest
from safepoint.config.errors import ConfigError
from safepoint.config.resolve import endpoints
from safepoint.config.settings import load

LEDGER = {"SAFEPOINT_LEDGER_URL": "postgresql://u:secret@h/d"}
BROKER = {"SAFEPOINT_BROKER_URL": "amqp://u:secret@h//"}


def test_configured_urls_are_taken_as_they_are():
    direct = {"SAFEPOINT_LEDGER_DIRECT_URL": "postgresql://u:secret@direct/d"}

    found = endpoints(load(env=LEDGER | BROKER | direct))

    assert found.ledger_url == LEDGER["SAFEPOINT_LEDGER_URL"]
    assert found.direct_url == "postgresql://u:secret@direct/d"
    assert found.broker_url == BROKER["SAFEPOINT_BROKER_URL"]
    assert found.embedded is None
    assert "secret" not in repr(found)


def test_the_ledger_alone_serves_until_somebody_asks_for_the_broker():
    found = endpoints(load(env=LEDGER))

    assert found.direct_url == found.ledger_url
    with pytest.raises(ConfigError, match="SAFEPOINT_BROKER_URL"):
        _ = found.broker_url


def test_a_broker_without_a_ledger_is_refused():
    with pytest.raises(ConfigError, match="SAFEPOINT_LEDGER_URL"):
        endpoints(load(env=BROKER))


def test_nothing_configured_starts_the_embedded_stack_and_closing_stops_it(home):
    found = endpoints(load(env={"SAFEPOINT_HOME": str(home)}))

    assert found.embedded is not None
    assert found.ledger_url.startswith("postgresql://safepoint:")
    assert found.broker_url.startswith("redis://:")
    found.close()
