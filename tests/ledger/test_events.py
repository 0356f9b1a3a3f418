"""A run's events as a client reads them: in order, each once, with ids that survive a reconnect (G11)."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID, uuid4

import pytest
from prepared import FIRST, Ledger, prepared, step
from safepoint.ledger import control, events


@pytest.fixture
def ledger(ledger_url: str) -> Iterator[Ledger]:
    with prepared(ledger_url) as opened:
        yield opened


@pytest.fixture
def run(ledger: Ledger) -> UUID:
    return ledger.started(step(FIRST))


def incarnation(ledger: Ledger) -> UUID:
    row = ledger.connection.execute("SELECT incarnation FROM safepoint.identity").fetchone()
    assert row is not None
    return UUID(str(row[0]))


def test_events_are_read_in_order_without_gaps(ledger: Ledger, run: UUID):
    found = events.read(ledger.connection, run)

    assert [event.type for event in found] == ["run.queued", "run.started", "step.scheduled"]
    assert [event.seq for event in found] == [1, 2, 3]
    assert found[2].key == "look#1"
    assert (found[2].data["kind"], found[2].v, found[2].run_id) == ("step", 1, str(run))
    assert found[0].at.tzinfo is not None


def test_reading_goes_on_where_it_stopped(ledger: Ledger, run: UUID):
    first = events.read(ledger.connection, run, limit=2)
    rest = events.read(ledger.connection, run, after=first[-1].seq)

    assert first + rest == events.read(ledger.connection, run)


def test_an_events_id_carries_the_incarnation(ledger: Ledger, run: UUID):
    last = events.read(ledger.connection, run)[-1]

    assert events.parse_id(last.id) == (incarnation(ledger), last.seq)
    assert events.start_after(ledger.connection, last.id) == last.seq


def test_p8_an_id_of_another_incarnation_starts_from_the_beginning(ledger: Ledger, run: UUID):
    last = events.read(ledger.connection, run)[-1].id
    control.restored(ledger.connection, reason="test")

    assert events.start_after(ledger.connection, last) == 0
    assert events.read(ledger.connection, run)[-1].id != last


@pytest.mark.parametrize(("after", "number"), [(0, 0), (7, 7), ("7", 7)])
def test_a_number_is_taken_as_it_is(ledger: Ledger, after: int | str, number: int):
    assert events.start_after(ledger.connection, after) == number


@pytest.mark.parametrize("text", ["", "x", f"{uuid4()}-", f"{uuid4()}-x", f"{uuid4()}-²", "1-1"])
def test_what_is_no_id_is_refused_with_what_is(text: str):
    with pytest.raises(ValueError, match="Accepted: <incarnation>-<seq>"):
        events.parse_id(text)


def test_the_last_event_of_an_ended_run_is_final(ledger: Ledger, run: UUID):
    assert not any(event.is_final for event in events.read(ledger.connection, run))

    ledger.connection.execute("UPDATE safepoint.runs SET ending = 'cancelled' WHERE run_id = %s", [run])
    ledger.connection.execute("SELECT safepoint.finish_v1(%s)", [run])

    assert events.read(ledger.connection, run)[-1].is_final
