"""The examination behind `doctor`: asks ledger and broker side by side, each check for itself, in a bounded time."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import psycopg

from ..config.errors import SafepointError
from ..config.settings import Settings
from ..ledger import condition, server
from ..ledger.breaker_views import list_breakers
from ..ledger.connect import Connection, connect
from ..ledger.errors import BrokerUnavailable, LedgerUnavailable
from ..ledger.snapshot import snapshot
from ..ledger.upgrade import state
from ..tasks import broker, broker_amqp, broker_redis, management, registry
from . import broker_findings, server_findings, work_findings
from .finding import Finding, error, fine, warning
from .places import Places, find

__all__ = ["WITHIN", "examine"]

WITHIN = 10.0  # seconds for everything that is asked; a server that does not answer costs no more
ASK = 3.0  # seconds for one connection or statement
OLD = 300.0  # seconds of an open transaction
LATE = 30.0  # seconds that a due step may lie unsent
T = TypeVar("T")


@dataclass(slots=True)
class Notes:
    """What one side has found so far; read when its time is over, whether it has come to its end or not."""

    secrets: Sequence[str] = ()
    findings: list[Finding] = field(default_factory=list)
    loads: Sequence[condition.LaneLoad] | None = None
    queues: broker.Queues | None = None
    running: float = 0.0
    bounds: broker.Bounds | None = None

    def take(self, check: str, look: Callable[[], list[Finding]]) -> None:
        """Run one check; what it meets is a finding, and the next one runs all the same."""
        try:
            self.findings += look()
        except Exception as trouble:  # noqa: BLE001  # the person who asked sees it, as a finding
            text = f"This could not be looked at: {self.words(trouble)}"
            self.findings.append(warning(check, text, "safepoint doctor, once more; then the log of the server"))

    def words(self, trouble: BaseException) -> str:
        """Give an error in one line, without the passwords that a library may have repeated."""
        text = " ".join(str(trouble).split())[:300]
        for secret in self.secrets:
            text = text.replace(secret, "***")
        is_told = isinstance(trouble, SafepointError | psycopg.Error) and text
        return text if is_told else f"{type(trouble).__name__}: {text}"


def examine(settings: Settings, *, within: float = WITHIN) -> list[Finding]:
    """Look at everything; nothing is changed, nothing is started."""
    where = _bounded(lambda: find(settings), within=within)
    if where is None:
        text = "Another process is starting or stopping the embedded servers."
        return [error("embedded", text, "safepoint doctor, in a moment")]
    with where:
        flows, ledger, brokers = Notes(where.secrets), Notes(where.secrets), Notes(where.secrets)
        _ask_code(settings, flows, within=within)
        asked = []
        if where.ledger_url:
            asked.append(_start(partial(_ask_ledger, settings, where, ledger), "ledger"))
        if where.broker_url:
            asked.append(_start(partial(_ask_broker, settings, where.broker_url, brokers), "broker"))
        late = _await(asked, until=time.monotonic() + within)
        found = [*where.findings, *flows.findings, *ledger.findings, *brokers.findings]
        found += [_too_late(name, within) for name in late]
        return [*found, *_together(settings, ledger, brokers)]


def _start(work: Callable[[], None], name: str) -> threading.Thread:
    thread = threading.Thread(target=work, name=name, daemon=True)
    thread.start()
    return thread


def _await(threads: Sequence[threading.Thread], *, until: float) -> list[str]:
    """Wait for threads until a moment, and name those that are not done."""
    for one in threads:
        one.join(max(0.0, until - time.monotonic()))
    return [one.name for one in threads if one.is_alive()]


def _bounded(work: Callable[[], T], *, within: float) -> T | None:
    """Return what the work comes to, or none when it takes too long; its error is the caller's."""
    results: list[T] = []
    troubles: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as trouble:  # noqa: BLE001  # raised again below, in the caller's thread
            troubles.append(trouble)

    _start(run, "bounded").join(within)
    if troubles:
        raise troubles[0]
    return results[0] if results else None


def _too_late(name: str, within: float) -> Finding:
    text = f"The {name} has not answered everything within {within:g} s; the rest was not looked at."
    return error(name, text, f"see whether the {name} hangs, then safepoint doctor again")


# --- the code -------------------------------------------------------------------------------------------------------


def _ask_code(settings: Settings, notes: Notes, *, within: float) -> None:
    """Import the flows: their timeouts and lanes are what several checks compare with."""
    if not settings.flows:
        text = "SAFEPOINT_FLOWS is not set: timeouts and lanes of your steps are not known here."
        notes.findings.append(warning("flows", text, "SAFEPOINT_FLOWS=module safepoint doctor"))
        return
    try:
        with redirect_stdout(sys.stderr):  # what a module prints must not stand in the document
            done = _bounded(partial(_import, settings.flows), within=within)
    except SafepointError as trouble:
        next_ = "mend the import; workers do not start without it"
        notes.findings.append(error("flows", notes.words(trouble), next_))
        return
    if done is None:
        text = f"The modules of SAFEPOINT_FLOWS take more than {within:g} s to import."
        notes.findings.append(error("flows", text, "keep calls and connections out of their top level"))
        return
    names = ", ".join(f"{name}@{version}" for name, version in sorted(registry.flows()))
    notes.findings.append(fine("flows", f"The code has {names or 'no flow'}."))


def _import(modules: Sequence[str]) -> bool:
    registry.load(modules)
    return True


def _wanted() -> Mapping[str, list[str]]:
    """Give the lanes that the known steps ask for, with the steps' names."""
    found: dict[str, list[str]] = {}
    for name, step in sorted(registry.steps().items()):
        found.setdefault(step.lane, []).append(name)
    return found


# --- the ledger -----------------------------------------------------------------------------------------------------


def _ask_ledger(settings: Settings, where: Places, notes: Notes) -> None:
    assert where.ledger_url is not None
    try:
        connection = _connect(where.ledger_url)
    except LedgerUnavailable as trouble:
        next_ = "start PostgreSQL, or mend SAFEPOINT_LEDGER_URL"
        notes.findings.append(error("ledger", notes.words(trouble), next_))
        return
    with connection:
        _ask_server(connection, notes)
        before = len(notes.findings)
        notes.take("schema", lambda: server_findings.schema(state(str(where.ledger_url))))
        if any(one.level != "ok" for one in notes.findings[before:]):
            return  # without its tables there is nothing more to ask
        _ask_work(connection, settings, notes)
        _ask_sessions(connection, settings, where, notes)
        notes.take("breakers", lambda: _breakers(str(where.ledger_url)))


def _connect(url: str) -> Connection:
    return connect(url, name="safepoint doctor", connect_timeout=ASK, statement_timeout=ASK)


def _ask_server(connection: Connection, notes: Notes) -> None:
    notes.take("ledger", lambda: server_findings.server(server.read_server(connection)))
    notes.take("latency", lambda: server_findings.latency(server.read_clock(connection)))
    notes.take("durability", lambda: server_findings.durability(server.read_server(connection)))
    notes.take("transactions", lambda: server_findings.holders(server.read_holders(connection, older_than=OLD)))
    notes.take("bloat", lambda: server_findings.bloat(server.read_bloat(connection)))


def _ask_work(connection: Connection, settings: Settings, notes: Notes) -> None:
    def loads() -> list[Finding]:
        notes.loads = condition.read_loads(connection, late=LATE, lost=settings.relay.redispatch_after)
        notes.running = condition.longest_claim(connection)
        return work_findings.lanes(notes.loads, condition.read_workers(connection))

    def identity() -> condition.Identity:
        return condition.read_identity(connection)

    def workers() -> list[condition.Worker]:
        return condition.read_workers(connection)

    def room() -> server.Room:
        return server.read_room(connection)

    def limits() -> dict[str, condition.LaneLimits]:
        return condition.read_limits(connection)

    judge, of_server = work_findings, server_findings
    notes.take("clock", lambda: of_server.clock(server.read_clock(connection), identity()))
    notes.take("incarnation", lambda: of_server.timeline(server.read_server(connection), identity()))
    notes.take("connections", lambda: of_server.room(room(), workers()))
    notes.take("scan", lambda: judge.scan(identity(), interval=settings.scan.interval))
    notes.take("workers", lambda: judge.workers(workers(), identity()))
    notes.take("lanes", loads)
    notes.take("relay", lambda: judge.relays(room().relays, notes.loads or (), late=LATE))
    notes.take("slots", lambda: judge.slots(limits(), workers()))
    notes.take("flows", lambda: judge.steps_served(_wanted(), settings.lanes, workers()))
    notes.take("versions", lambda: judge.versions(condition.read_unserved(connection)))
    notes.take("held", lambda: judge.held(condition.read_held(connection)))
    notes.take("configuration", lambda: judge.configured(settings.lanes, limits(), window=settings.relay.window))


def _ask_sessions(connection: Connection, settings: Settings, where: Places, notes: Notes) -> None:
    url = where.direct_url or where.ledger_url
    try:
        direct = _connect(str(url))
    except LedgerUnavailable as trouble:
        text = f"SAFEPOINT_LEDGER_DIRECT_URL leads nowhere, and no worker starts: {notes.words(trouble)}"
        notes.findings.append(error("sessions", text, "mend it, or unset it where there is no pooler"))
        return
    with direct:
        if not server.is_same_database(direct, connection):
            notes.findings += server_findings.elsewhere()
            return
        wanted = settings.worker.session_lock
        judge = partial(server_findings.direct, wanted=wanted)
        notes.take("sessions", lambda: judge(not wanted or server.is_direct(direct, connection)))
        notes.take("notify", lambda: server_findings.notify(server.hears_itself(direct, connection, within=1.0)))


def _breakers(url: str) -> list[Finding]:
    with snapshot(url, name="safepoint doctor", connect_timeout=ASK, statement_timeout=ASK) as connection:
        return work_findings.breakers(list_breakers(connection, events=1))


# --- the broker -----------------------------------------------------------------------------------------------------


def _ask_broker(settings: Settings, url: str, notes: Notes) -> None:
    names = broker.queue_names(settings)
    notes.bounds = broker.bounds(settings, url, {name: step.timeout for name, step in registry.steps().items()})
    try:
        if broker.is_rabbitmq(url):
            found = broker_amqp.look(url, settings)
            told = management.ask(url)
            notes.queues = found.queues
            notes.take("broker", lambda: broker_findings.amqp(found, told))
            bounds = notes.bounds
            notes.take("consumer_timeout", lambda: broker_findings.consumer_timeout(bounds, told, names))
        else:
            seen = broker_redis.look(url, names)
            notes.queues = seen.queues
            notes.take("broker", lambda: broker_findings.redis(seen))
    except BrokerUnavailable as trouble:
        notes.findings.append(error("broker", notes.words(trouble), "start the broker, or mend SAFEPOINT_BROKER_URL"))
    except Exception as trouble:  # noqa: BLE001  # kombu has many ways to fail; the person who asked sees this one
        text = f"The broker does not answer as it should: {notes.words(trouble)}"
        notes.findings.append(error("broker", text, "see its log, and SAFEPOINT_BROKER_URL"))


def _together(settings: Settings, ledger: Notes, brokers: Notes) -> list[Finding]:
    """Judge what only both sides together tell."""
    notes = Notes()
    if brokers.bounds is not None:
        bounds = brokers.bounds
        notes.take("visibility_timeout", lambda: broker_findings.visibility(bounds, running=ledger.running))
    if brokers.queues is not None and ledger.loads is not None:
        queues, loads = brokers.queues, ledger.loads
        lanes = {name: lane.queue for name, lane in settings.lanes.items()}
        control, patience = lanes.get("control", "control"), settings.relay.redispatch_after
        judge = partial(broker_findings.depths, control=control, patience=patience)
        notes.take("queues", lambda: judge(queues, lanes, loads))
    return notes.findings
