"""`current().once`: named parts of a step, each committed by itself (P38); they survive the step's retries.

Any exception from `put` means *outcome unknown* (P3): the caller sends the identical call again.
"""

from __future__ import annotations

from decimal import Decimal
from uuid import UUID

from .codec import Encoded
from .connect import Connection
from .errors import LeaseLost
from .key import Key

__all__ = ["get", "put"]


def get(connection: Connection, run_id: UUID, key: Key, *, name: str) -> Encoded | None:
    """Return the part of that name, whichever attempt has written it; None when none has."""
    row = connection.execute(
        # The primary key's index. No fence: who has lost its claim is refused when it writes.
        "SELECT data, encoding FROM safepoint.once WHERE run_id = %s AND generation = %s AND path = %s AND step_id = %s"
        " AND iteration = %s AND name = %s",
        (run_id, key.generation, key.path, key.step_id, key.iteration, name),
    ).fetchone()
    return None if row is None else Encoded.of(row[0], encoding=row[1])


def put(  # noqa: PLR0913  # the parts of one fenced write
    connection: Connection,
    run_id: UUID,
    key: Key,
    *,
    token: UUID,
    name: str,
    value: Encoded,
    tokens: int = 0,
    usd: Decimal = Decimal(0),
) -> Encoded | None:
    """Write a part and charge what it has cost, if the claim still stands.

    Args:
        connection: an autocommit connection.
        run_id: the run.
        key: the step.
        token: the claim's token.
        name: the part's name, unique in the step.
        value: what `fn` gave.
        tokens: what it has cost.
        usd: what it has cost.

    Returns:
        None when the row is this one, else the row of who was first.

    Raises:
        LeaseLost: the step has another owner, or has ended.
    """
    row = connection.execute(
        "SELECT answer, data, encoding FROM safepoint.once_v1(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)",
        (
            *(run_id, key.generation, key.path, key.step_id, key.iteration, token),
            *(name, value.data, value.encoding, tokens, usd),
        ),
    ).fetchone()
    if row is None or row[0] == "lost":
        raise LeaseLost(run_id=str(run_id), key=str(key))
    return None if row[0] == "written" else Encoded.of(row[1], encoding=row[2])
