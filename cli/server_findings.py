"""What the state of the PostgreSQL server means for the ledger. Pure: it takes what was read and judges it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from ..ledger.condition import Identity, Worker
from ..ledger.server import Bloat, Holder, Reading, Room, Server
from ..ledger.upgrade import SchemaState
from .finding import Finding, error, fine, warning
from .words import span

__all__ = [
    "bloat",
    "clock",
    "direct",
    "durability",
    "elsewhere",
    "holders",
    "latency",
    "notify",
    "room",
    "schema",
    "server",
    "timeline",
]

OLDEST: Final = 140_000  # PostgreSQL 14
SLOW: Final = 0.02  # seconds: a step costs at least two round trips, a claim and a commit
SKEW: Final = 1.0  # seconds that nobody sees in a table of ages
WRAPAROUND: Final = 1_000_000_000  # transactions: autovacuum begins at 200 million, the server stops at 2.1 billion
DEAD_ROWS: Final = 50_000
CROWDED: Final = 0.85  # of the sessions that may be
OWN_SESSIONS: Final = 2  # of a worker's main process: its beats, its scans
RELAY_SESSIONS: Final = 2  # what it sends, what it listens to

_DURABLE: Final[Mapping[str, str]] = {
    "fsync": "a crash of its machine can lose or damage everything that was committed",
    "full_page_writes": "a crash of its machine can leave pages that are half old, half new",
}


def server(found: Server) -> list[Finding]:
    """Judge version and role."""
    if found.number < OLDEST:
        return [error("ledger", f"PostgreSQL is {found.version}; Safepoint needs 14 or later.", "upgrade PostgreSQL")]
    if found.in_recovery:
        text = f"PostgreSQL {found.version} is a standby: it takes no writes."
        return [error("ledger", text, "point SAFEPOINT_LEDGER_URL at the primary, or promote this one")]
    if found.settings.get("default_transaction_read_only") == "on":
        text = f"PostgreSQL {found.version} gives this role read-only transactions: nothing can be committed."
        return [error("ledger", text, "ALTER ROLE ... RESET default_transaction_read_only (or ALTER DATABASE ...)")]
    return [fine("ledger", f"PostgreSQL {found.version} answers.")]


def schema(state: SchemaState) -> list[Finding]:
    """Judge how far the migrations are."""
    if state.is_current:
        return [fine("schema", f"The ledger's schema is at {state.current}, which this release wants.")]
    if state.is_unknown and state.compatible:
        return [fine("schema", f"The ledger's schema is at {state.current}, which lists this release as compatible.")]
    if state.is_unknown:
        text = f"The ledger's schema is at {state.current}, newer than this release knows ({state.wanted})."
        return [error("schema", text, "install the release that has migrated it, or a newer one")]
    text = f"The ledger's schema is at {state.current or 'nothing'}; this release needs {state.wanted}."
    return [error("schema", text, "safepoint db upgrade")]


def durability(found: Server) -> list[Finding]:
    """Judge whether what was committed stays committed."""
    off = [name for name in _DURABLE if found.settings.get(name) == "off"]
    bad = [
        error(
            "durability", f"{name} is off: {_DURABLE[name]}.", f"ALTER SYSTEM SET {name} = on; SELECT pg_reload_conf()"
        )
        for name in off
    ]
    if found.settings.get("synchronous_commit") == "off":
        text = "synchronous_commit is off: a crash forgets what was committed in the last moments."
        bad.append(error("durability", text, "ALTER SYSTEM SET synchronous_commit = on; SELECT pg_reload_conf()"))
    for name in ("autovacuum", "track_counts"):
        if found.settings.get(name) == "off":
            text = f"{name} is off: every step leaves dead rows behind, and nobody takes them away."
            bad.append(warning("vacuum", text, f"ALTER SYSTEM SET {name} = on; SELECT pg_reload_conf()"))
    if found.frozen_age > WRAPAROUND:
        text = f"The oldest transaction is {found.frozen_age:,} back; at 2.1 billion the server stops."
        bad.append(error("vacuum", text, "VACUUM (FREEZE) in this database; look for what holds vacuum back"))
    return bad or [fine("durability", "What was committed is on the disk: fsync, full pages, synchronous commits.")]


def timeline(found: Server, noted: Identity) -> list[Finding]:
    """Judge whether this is still the history that the last scan saw (P8)."""
    if noted.timeline is not None and found.timeline is not None and noted.timeline != found.timeline:
        text = f"The server is on timeline {found.timeline}, the last scan saw {noted.timeline}: a promoted standby."
        return [warning("incarnation", f"{text} Effects of live runs are looked up or held.", "safepoint effects")]
    if noted.reason != "created":
        return [fine("incarnation", f"The ledger's history has changed before: {noted.reason}.")]
    return [fine("incarnation", "The ledger's history is the one it was made with.")]


def latency(reading: Reading) -> list[Finding]:
    """Judge the way to the server and back."""
    took = f"{reading.round_trip * 1000:.1f} ms"
    if reading.round_trip > SLOW:
        text = f"A question to the ledger takes {took}; each step asks at least twice."
        return [warning("latency", text, "run the workers nearer to the database")]
    return [fine("latency", f"A question to the ledger takes {took}.")]


def clock(reading: Reading, noted: Identity | None = None) -> list[Finding]:
    """Judge the database's clock: against this machine's, and against what it has written itself."""
    found = []
    if noted is not None and noted.future is not None and noted.future > SKEW:
        text = f"The database's clock went back: the ledger holds instants {span(noted.future)} ahead of it."
        text += " Leases and timers last that much longer."
        found.append(warning("clock", text, "let NTP slew the database host's clock, not step it"))
    if abs(reading.ahead) - reading.error > SKEW:
        way = "ahead of" if reading.ahead > 0 else "behind"
        text = f"The database's clock is {span(abs(reading.ahead))} {way} this machine's (± {_short(reading.error)})."
        text += " Leases and deadlines go by the database's alone; ages that are shown here are wrong."
        found.append(warning("clock", text, "synchronise both clocks (timedatectl, chronyc tracking)"))
    agree = f"The clocks of database and machine differ by {_short(abs(reading.ahead))}, ± {_short(reading.error)}."
    return found or [fine("clock", agree)]


def _short(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms" if seconds < 1 else span(seconds)


def elsewhere() -> list[Finding]:
    """Say that the direct URL is another database's: nodes register over it."""
    text = (
        "SAFEPOINT_LEDGER_DIRECT_URL leads to another database than SAFEPOINT_LEDGER_URL: workers are not seen there."
    )
    return [error("sessions", text, "let both lead to the ledger's database")]


def direct(works: bool, *, wanted: bool) -> list[Finding]:  # noqa: FBT001  # what was found
    """Judge the session lock's self-test (P21)."""
    if not wanted:
        return [fine("sessions", "worker.session_lock is off: a dead worker is noticed when its lease ends.")]
    if works:
        return [fine("sessions", "Session locks hold: a killed worker is noticed at once.")]
    text = "Session locks do not hold, as behind a transaction pooler: a dead worker is noticed when its lease ends."
    return [warning("sessions", text, "set SAFEPOINT_LEDGER_DIRECT_URL to the server behind the pooler")]


def notify(heard: bool) -> list[Finding]:  # noqa: FBT001  # what was found
    """Judge whether who listens hears."""
    if heard:
        return [fine("notify", "NOTIFY is heard: relays and waiting clients are woken at once.")]
    text = "NOTIFY is not heard: relays and waiting clients look for themselves, now and then, which is slower."
    return [warning("notify", text, "set SAFEPOINT_LEDGER_DIRECT_URL to the server itself, past any pooler")]


def room(found: Room, workers: Sequence[Worker]) -> list[Finding]:
    """Judge the sessions: those that are, and those that all live processes may open."""
    live = [one for one in workers if one.is_live]
    needed = sum(one.concurrency + OWN_SESSIONS for one in live) + RELAY_SESSIONS * max(1, found.relays)
    next_ = "raise max_connections, or lower the workers' concurrency; a pooler serves SAFEPOINT_LEDGER_URL"
    if found.used >= found.limit:
        text = f"The server has {found.used} sessions of {found.limit} that may be: new ones are refused."
        return [error("connections", text, next_)]
    if needed > found.limit:
        text = f"The live workers and relays may open {needed} sessions; the server lets {found.limit} in."
        return [error("connections", text, next_)]
    text = f"{found.used} of {found.limit} sessions are open; the live workers and relays need up to {needed}."
    if max(found.used, needed) > CROWDED * found.limit:
        return [warning("connections", text, next_)]
    return [fine("connections", text)]


def holders(found: Sequence[Holder]) -> list[Finding]:
    """Judge what keeps vacuum from its work."""
    return [_holder(one) for one in found] or [fine("transactions", "No old transaction holds vacuum back.")]


def _holder(one: Holder) -> Finding:
    since = "" if one.seconds is None else f" for {span(one.seconds)}"
    match one.kind:
        case "slot":
            text = f"The replication slot {one.id} is not used and holds vacuum back."
            return warning("transactions", text, f"SELECT pg_drop_replication_slot('{one.id}'), if nobody needs it")
        case "prepared":
            text = f"The prepared transaction {one.id} of {one.name} stands{since} and holds vacuum back."
            return warning("transactions", text, f"COMMIT PREPARED '{one.id}', or ROLLBACK PREPARED")
    text = f"A transaction of {one.name} (process {one.id}, {one.state}) is open{since} and holds vacuum back."
    return warning("transactions", text, f"end it there, or SELECT pg_terminate_backend({one.id})")


def bloat(found: Sequence[Bloat]) -> list[Finding]:
    """Judge the dead rows."""
    full = [one for one in found if one.dead > DEAD_ROWS and one.dead > one.live]
    bad = []
    for one in full:
        vacuumed = f"last vacuumed at {one.vacuumed}" if one.vacuumed else "never vacuumed"
        text = f"safepoint.{one.table} has {one.dead:,} dead rows beside {one.live:,} live ones, {vacuumed}."
        bad.append(warning("bloat", text, f"VACUUM safepoint.{one.table}; then see why autovacuum does not come"))
    return bad or [fine("bloat", "Vacuum keeps up with the ledger's tables.")]
