"""What people and apps do to a run: cancel, pause, resume, reopen, signal; each is one guarded call under the run's
lock.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, LiteralString
from uuid import UUID

from psycopg.types.json import Jsonb

from .connect import Connection

__all__ = ["cancel", "mail", "pause", "reopen", "restored", "resume"]


def _one(connection: Connection, statement: LiteralString, values: tuple[Any, ...]) -> str:
    row = connection.execute(statement, values).fetchone()
    return "unknown" if row is None else str(row[0])


def cancel(connection: Connection, run_id: UUID, *, by: str) -> str:
    """Ask a run to stop; answers its status after it, or `unknown`."""
    return _one(connection, "SELECT safepoint.cancel_v1(%s, %s)", (run_id, by))


def pause(connection: Connection, run_id: UUID, *, by: str) -> str:
    """Start nothing more of a run; what is running commits. Answers `paused`, another status, or `unknown`."""
    return _one(connection, "SELECT safepoint.pause_v1(%s, %s)", (run_id, by))


def resume(connection: Connection, run_id: UUID, *, by: str, code: str | None = None) -> str:
    """Lift the pause and the holds, or only the one named `code`; answers the status after it, or `unknown`."""
    return _one(connection, "SELECT safepoint.resume_v1(%s, %s, %s)", (run_id, by, code))


def reopen(connection: Connection, run_id: UUID, *, by: str) -> str:
    """Let a failed run go on in place (P36); answers `running` or why not."""
    return _one(connection, "SELECT safepoint.reopen_v1(%s, %s)", (run_id, by))


def mail(  # noqa: PLR0913  # one mail's parts, each by name
    connection: Connection,
    run_id: UUID,
    *,
    kind: str,
    name: str,
    data: bytes | None,
    encoding: str | None,
    sender: str | None = None,
    dedupe: str | None = None,
    status: str = "succeeded",
    error: dict[str, Any] | None = None,
    artifacts: Sequence[str] = (),
) -> str:
    """Bring a signal to a run: `delivered` to a wait, `stored` for one to come, `decided` (an approval that has been),
    `duplicate`, `final` or `unknown`.

    Args:
        connection: any connection; the mail is part of its transaction.
        run_id: the run.
        kind: `signal`, `approval` or `child`.
        name: what the wait is called.
        data: the encoded payload.
        encoding: how it is encoded.
        sender: who sends it.
        dedupe: a key under which the same mail is taken once.
        status: the outcome that it brings.
        error: the outcome's error.
        artifacts: digests of what the payload refers to, which the run keeps from now on.
    """
    if artifacts:  # before the mail: a run that is not told of them keeps them in vain, and no longer than itself
        connection.execute("SELECT safepoint.hand_artifacts_v1(%s, %s)", (run_id, list(artifacts)))
    values = (run_id, kind, name, data, encoding, sender, dedupe, status, None if error is None else Jsonb(error))
    return _one(connection, "SELECT safepoint.mail_v1(%s, %s, %s, %s, %s, %s, %s, %s, %s)", values)


def restored(connection: Connection, *, reason: str) -> str:
    """Give the ledger a new incarnation (P8): every process that sees it drops its caches."""
    return _one(connection, "SELECT safepoint.restored_v1(%s)", (reason,))
