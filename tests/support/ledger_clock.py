"""A clock that a test sets, in place of the ledger's own (P7)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from safepoint.ledger.connect import Connection

EPOCH = datetime(2030, 1, 1, tzinfo=UTC)


class Clock:
    """Replaces `safepoint.now()` in a test's own database; it stands still until it is set."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.seconds = 0.0
        connection.execute("CREATE TABLE safepoint.test_clock (at timestamptz NOT NULL)")
        connection.execute("INSERT INTO safepoint.test_clock VALUES (%s)", (EPOCH,))
        connection.execute(
            "CREATE OR REPLACE FUNCTION safepoint.now() RETURNS timestamptz LANGUAGE sql STABLE"
            " SET search_path = safepoint, pg_temp AS 'SELECT at FROM test_clock'"
        )

    @property
    def now(self) -> datetime:
        """The instant that the ledger believes in."""
        return EPOCH + timedelta(seconds=self.seconds)

    def set(self, seconds: float) -> None:
        """Let it be that many seconds after the clock's beginning."""
        self.seconds = seconds
        self._connection.execute("UPDATE safepoint.test_clock SET at = %s", (self.now,))

    def forward(self, seconds: float) -> None:
        """Let time pass."""
        self.set(self.seconds + seconds)
