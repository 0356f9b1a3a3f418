"""Lanes in the ledger: the file's policy, what people set over it for a time, and what of both holds now.

Admission reads them under the lane's row lock, so that limits hold over any number of relays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from psycopg.types.json import Jsonb

from .connect import Connection

__all__ = ["Policy", "apply", "lift", "override"]


class Policy(Protocol):
    """What the configuration says of a lane."""

    def as_policy(self) -> dict[str, Any]:
        """Return what is set, by the names of the configuration's keys."""
        ...


def apply(
    connection: Connection,
    lanes: Mapping[str, Policy],
    *,
    window: int | None = None,
    only_missing: bool = False,
    by: str = "",
    why: str = "",
) -> dict[str, str]:
    """Write the configured lanes and return what became of each: `added`, `changed` or `same`.

    Args:
        connection: an autocommit connection.
        lanes: by name; others that the ledger has are left alone.
        window: the window of lanes that name none, in messages; None lets the ledger fit it to the workers.
        only_missing: leave lanes that the ledger has as they are: what a starting process may do.
        by: who applies it, for the audit.
        why: for the audit.
    """
    done = {}
    for name in sorted(lanes):
        policy = lanes[name].as_policy()
        if window is not None:
            policy.setdefault("window", window)
        row = connection.execute(
            "SELECT safepoint.apply_lane_v1(%s, %s, %s, %s, %s)", (name, Jsonb(policy), only_missing, by, why)
        ).fetchone()
        done[name] = "" if row is None else str(row[0])
    return done


def override(
    connection: Connection, lane: str, values: Mapping[str, Any], *, seconds: float | None, by: str, why: str
) -> bool:
    """Set keys of a lane over what the file says, for so many seconds or until they are lifted; False: no such lane.

    A value of None lifts the limit that the file sets.
    """
    row = connection.execute(
        "SELECT safepoint.override_lane_v1(%s, %s, %s, %s, %s)", (lane, Jsonb(dict(values)), seconds, by, why)
    ).fetchone()
    return row is not None and bool(row[0])


def lift(connection: Connection, lane: str, keys: Sequence[str] | None, *, by: str, why: str) -> tuple[str, ...] | None:
    """End overrides of these keys, or of all (None), before their time; return which there were; None: no such lane."""
    row = connection.execute(
        "SELECT safepoint.lift_overrides_v1(%s, %s, %s, %s)", (lane, None if keys is None else list(keys), by, why)
    ).fetchone()
    return None if row is None or row[0] is None else tuple(row[0])
