"""Changes lanes' policies: the file's word, and people's over it. What holds is kept, and admitted by, the ledger.

Nothing is written that the file would not be allowed to say; of two people who change one lane at once each sees what
the other has done.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from ..config.errors import ConfigError, Problem
from ..config.explain import explain, unknown
from ..config.lanes import Lane
from ..ledger import lanes
from ..ledger.connect import Connection

__all__ = ["KEYS", "Applied", "apply", "compare", "override", "pause", "resume"]

KEYS = tuple(key for key in Lane.model_fields if key not in {"name", "queue"})  # what the ledger keeps
Values = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Applied:
    """What the file's word has made, or would make, of a lane: `added`, `changed`, `same`, or `kept` if it has none."""

    name: str
    outcome: str
    changes: dict[str, tuple[Any, Any]] = field(default_factory=dict)  # key -> before, after; None is no limit


def compare(before: Mapping[str, Values], wanted: Mapping[str, Values]) -> list[Applied]:
    """Tell what applying policies over those that stand changes, lane by lane."""
    found = []
    for name in sorted({*before, *wanted}):
        if name not in wanted:
            found.append(Applied(name, "kept"))
            continue
        changes = _differences(before.get(name, {}), wanted[name])
        outcome = "added" if name not in before else "changed" if changes else "same"
        found.append(Applied(name, outcome, changes))
    return found


def _differences(before: Values, after: Values) -> dict[str, tuple[Any, Any]]:
    sides = _flat(before), _flat(after)
    pairs = {
        key: (sides[0].get(key, _default(key)), sides[1].get(key, _default(key))) for key in {**sides[0], **sides[1]}
    }
    return {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}


def _flat(policy: Values) -> dict[str, Any]:
    """Give a policy with each tenant's weight as a value of its own, in the order of the model."""
    flat: dict[str, Any] = {}
    for key in KEYS:
        if key == "weights":
            flat |= {f"weights.{tenant}": weight for tenant, weight in sorted((policy.get(key) or {}).items())}
        elif key in policy:
            flat[key] = policy[key]
    return flat


def _default(key: str) -> Any:
    return 1.0 if key.startswith("weights.") else Lane.model_fields[key].default


def apply(
    connection: Connection, configured: Mapping[str, Lane], *, window: int | None, by: str, why: str
) -> list[Applied]:
    """Write the configured policies, all of them or none; overrides stand, and lanes that the file has not are kept."""
    wanted = lanes.policies(configured, window=window)
    with connection.transaction():
        before = {name: one.policy for name, one in lanes.lock(connection, lanes.names(connection)).items()}
        found = compare(before, wanted)
        lanes.apply(connection, configured, window=window, by=by, why=why)
    return found


def override(
    connection: Connection, name: str, values: Values, *, seconds: float | None, by: str, why: str
) -> Lane | None:
    """Set keys of a lane, as they were typed, for a while or until they are lifted; return what holds then.

    Weights are set for the tenants that are named; those of others stay. None: there is no such lane.

    Raises:
        ConfigError: a value that the file would not be allowed to have either, or that contradicts what holds.
    """
    with connection.transaction():
        standing = lanes.lock(connection, [name]).get(name)
        if standing is None:
            return None
        lane = _checked(name, standing.effective, values)
        told = lane.model_dump(mode="json")
        lanes.override(connection, name, {key: told[key] for key in values}, seconds=seconds, by=by, why=why)
    return lane


def _checked(name: str, effective: Values, values: Values) -> Lane:
    source = f"lane {name}"
    if "queue" in values:
        raise ConfigError(None, Problem(source, "queue", "processes read it when they start: it is set in the file"))
    if strange := [key for key in values if key not in KEYS]:
        raise ConfigError(None, *(unknown(source, key, KEYS) for key in strange))
    weights = {**(effective.get("weights") or {}), **values.get("weights", {})}
    wanted = {**effective, **values, **({"weights": weights} if "weights" in values else {})}
    try:
        return Lane.of(name, wanted, changed=frozenset(values))
    except ValidationError as error:
        problems = [
            explain(Lane, item, source=source, key=None, value=_at(wanted, item["loc"]))
            for item in error.errors(include_input=False)
        ]
        raise ConfigError(None, *problems) from None


def _at(values: Any, place: tuple[int | str, ...]) -> object:
    for key in place:
        values = values.get(key) if isinstance(values, Mapping) else values
    return values


def pause(connection: Connection, name: str, *, seconds: float | None, by: str, why: str) -> bool:
    """Let nothing more of a lane start, for a while or until it is resumed; False: there is no such lane."""
    return lanes.override(connection, name, {"paused": True}, seconds=seconds, by=by, why=why)


def resume(connection: Connection, name: str, *, by: str, why: str) -> bool:
    """Let a lane go on, whoever has paused it: a person, or the file; False: there is no such lane."""
    with connection.transaction():
        standing = lanes.lock(connection, [name]).get(name)
        if standing is None:
            return False
        if standing.policy.get("paused"):
            lanes.override(connection, name, {"paused": False}, seconds=None, by=by, why=why)
        else:
            lanes.lift(connection, name, ["paused"], by=by, why=why)
    return True
