"""What can be known of the PostgreSQL server under the ledger: read with plain SELECTs, from the system's own views.

Nothing here needs the ledger's schema, and nothing is changed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from secrets import token_hex
from typing import Any, Final

from .connect import Connection
from .nodes import hold_session_lock, lock_key, session_locks_work

__all__ = [
    "Bloat",
    "Holder",
    "Reading",
    "Room",
    "Server",
    "hears_itself",
    "is_direct",
    "is_same_database",
    "read_bloat",
    "read_clock",
    "read_holders",
    "read_room",
    "read_server",
]

ROUNDS: Final = 5  # questions of which the quickest one tells the clock's difference and the way there and back
PROBE: Final = "safepoint doctor"  # no node is called so
CHANNEL: Final = "safepoint_doctor"

# By name, because a setting that a release does not know is then no row and no error.
_SETTINGS: Final = """
SELECT name, setting FROM pg_settings
 WHERE name IN ('fsync', 'full_page_writes', 'synchronous_commit', 'autovacuum', 'track_counts', 'track_activities',
                'default_transaction_read_only', 'server_version', 'server_version_num')
"""
# A standby has no position of its own in the log: asking for it there is an error.
_STATE: Final = """
SELECT pg_is_in_recovery(),
       CASE WHEN pg_is_in_recovery() THEN NULL ELSE substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8) END,
       (SELECT age(datfrozenxid) FROM pg_database WHERE datname = current_database())
"""
# What an ordinary role gets: less than max_connections by what is kept for others, and by its own and the database's
# limit, where they have one. Counted by pg_stat_database, because other roles' sessions hide what they are.
_ROOM: Final = """
SELECT least(
         (SELECT setting::int FROM pg_settings WHERE name = 'max_connections')
           - (SELECT coalesce(sum(setting::int), 0) FROM pg_settings
               WHERE name IN ('superuser_reserved_connections', 'reserved_connections')),
         (SELECT nullif(rolconnlimit, -1) FROM pg_roles WHERE rolname = current_user),
         (SELECT nullif(datconnlimit, -1) FROM pg_database WHERE datname = current_database())),
       (SELECT sum(numbackends) FROM pg_stat_database),
       (SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'safepoint relay%'
           AND application_name NOT LIKE '% lanes' AND datname = current_database())
"""
# Whatever keeps an old snapshot keeps vacuum from removing what every step leaves behind: sessions, prepared
# transactions, replication slots. Other roles' sessions hide their age from who has not pg_read_all_stats.
_HOLDERS: Final = """
SELECT 'session', pid::text, coalesce(nullif(application_name, ''), usename, '?'), coalesce(state, '?'),
       extract(epoch FROM clock_timestamp() - xact_start)::float
  FROM pg_stat_activity
 WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
   AND xact_start < clock_timestamp() - make_interval(secs => %(older)s)
UNION ALL
SELECT 'prepared', gid, owner, 'prepared', extract(epoch FROM clock_timestamp() - prepared)::float
  FROM pg_prepared_xacts
 WHERE database = current_database() AND prepared < clock_timestamp() - make_interval(secs => %(older)s)
UNION ALL
SELECT 'slot', slot_name, coalesce(plugin, slot_type), 'inactive', NULL
  FROM pg_replication_slots WHERE NOT active AND (xmin IS NOT NULL OR catalog_xmin IS NOT NULL)
ORDER BY 5 DESC NULLS LAST LIMIT 20
"""
# The statistics system's own estimates: counting for real would read the tables.
_BLOAT: Final = """
SELECT relname, n_live_tup, n_dead_tup, to_jsonb(greatest(last_autovacuum, last_vacuum)) #>> '{}'
  FROM pg_stat_user_tables WHERE schemaname = 'safepoint' ORDER BY n_dead_tup DESC
"""
# Two servers start at the same microsecond only when they are one.
_PLACE: Final = "SELECT current_database(), pg_postmaster_start_time()"
_CLOCK: Final = "SELECT extract(epoch FROM clock_timestamp())::float"


@dataclass(frozen=True, slots=True)
class Server:
    """The server's version and state."""

    version: str
    number: int  # as in server_version_num: 140005
    settings: Mapping[str, str] = field(default_factory=dict)
    in_recovery: bool = False
    timeline: str | None = None  # none on a standby
    frozen_age: int = 0  # transactions since the oldest one that is not frozen


@dataclass(frozen=True, slots=True)
class Room:
    """How many sessions there may be, how many there are, and how many of them are relays'."""

    limit: int
    used: int
    relays: int


@dataclass(frozen=True, slots=True)
class Holder:
    """What keeps an old snapshot; `seconds` is none where the server does not tell."""

    kind: str  # session | prepared | slot
    id: str
    name: str
    state: str
    seconds: float | None


@dataclass(frozen=True, slots=True)
class Bloat:
    """A table's live and dead rows, as the statistics have them."""

    table: str
    live: int
    dead: int
    vacuumed: str | None


@dataclass(frozen=True, slots=True)
class Reading:
    """A look at the database's clock: how far it is ahead of this machine's, give or take half of the round trip."""

    ahead: float
    round_trip: float

    @property
    def error(self) -> float:
        """The most by which `ahead` may be wrong: the clock was read somewhere between question and answer."""
        return self.round_trip / 2


def read_server(connection: Connection) -> Server:
    """Read version, settings and state."""
    settings = {str(name): str(value) for name, value in connection.execute(_SETTINGS)}
    recovering, timeline, age = _row(connection, _STATE)
    return Server(
        version=settings.get("server_version", "?"),
        number=int(settings.get("server_version_num", 0)),
        settings=settings,
        in_recovery=bool(recovering),
        timeline=timeline,
        frozen_age=int(age),
    )


def read_room(connection: Connection) -> Room:
    """Count the sessions of the whole server, and those that may be."""
    limit, used, relays = _row(connection, _ROOM)
    return Room(int(limit), int(used), int(relays))


def read_holders(connection: Connection, *, older_than: float) -> list[Holder]:
    """List what has kept a snapshot for longer than so many seconds, the oldest first."""
    return [Holder(*row) for row in connection.execute(_HOLDERS, {"older": older_than})]


def read_bloat(connection: Connection) -> list[Bloat]:
    """List the ledger's tables, the one with most dead rows first."""
    return [Bloat(*row) for row in connection.execute(_BLOAT)]


def read_clock(
    connection: Connection, *, now: Callable[[], float] = time.time, tick: Callable[[], float] = time.perf_counter
) -> Reading:
    """Compare the database's clock with this machine's, by the quickest of a few questions."""
    found = []
    for _ in range(ROUNDS):
        began, start = now(), tick()
        (theirs,) = _row(connection, _CLOCK)
        took = tick() - start
        found.append(Reading(float(theirs) - (began + took / 2), took))
    return min(found, key=lambda reading: reading.round_trip)


def is_same_database(one: Connection, other: Connection) -> bool:
    """Whether two URLs lead to the same database of the same server."""
    return _row(one, _PLACE) == _row(other, _PLACE)


def is_direct(direct: Connection, other: Connection) -> bool:
    """Whether a session of the direct URL keeps its locks, and another session of the ledger's URL sees them (P21)."""
    probe = f"{PROBE} {token_hex(8)}"  # one's own: another doctor may be at work
    try:
        return hold_session_lock(direct, probe) and session_locks_work(direct, other, probe)
    finally:
        direct.execute("SELECT pg_advisory_unlock(%s)", (lock_key(probe),))


def hears_itself(direct: Connection, other: Connection, *, within: float) -> bool:
    """Whether what one session says with NOTIFY is heard by one that listens, within so many seconds."""
    direct.execute(f"LISTEN {CHANNEL}")
    other.execute(f"NOTIFY {CHANNEL}")
    return any(True for _ in direct.notifies(timeout=within, stop_after=1))


def _row(connection: Connection, statement: str) -> tuple[Any, ...]:
    row = connection.execute(statement.encode()).fetchone()
    assert row is not None
    return row
