"""How a claimed effect that nobody knows about is to be settled, by its declaration and its lookup's own policy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import structlog

from ..ledger.codec import JSON
from ..ledger.errors import ValueNotDecodable, ValueNotOpened, describe
from ..recovery.reconcile import Doubt, Way, reconcile
from .retry import pause

if TYPE_CHECKING:
    from collections.abc import Callable

    from .record import Load
    from .turn import Turn

__all__ = ["misfit", "pause_of", "says", "way_of"]

log = structlog.get_logger("safepoint.effect")
LOOKUPS = 8  # answers that tell nothing before a person is asked, unless the lookup says otherwise


def way_of(turn: Turn, *, lookups: int, error: BaseException | None = None) -> Way:
    """Decide how the effect is settled after so many answers that told nothing."""
    step, safety = turn.declared, turn.declared.safety
    has_lookup = step.lookup_fn is not None and not turn.is_compensation
    idempotent = safety.idempotent
    if turn.is_compensation and step.undoing.idempotent is not None:
        idempotent = step.undoing.idempotent
    return reconcile(
        Doubt(
            has_lookup=has_lookup,
            asked_enough=has_lookup and lookups > 0 and pause_of(turn, lookups=lookups, error=error) is None,
            idempotent=idempotent,
            key_retention=safety.key_retention,
            first_sent_ago=turn.effect.first_sent_ago,
            call=step.timeout + safety.authoritative_after,
        )
    )


def misfit(turn: Turn, load: Load) -> ValueNotDecodable | None:
    """Say why a result that somebody has given is not what the effect returns; they may have had no code to ask."""
    effect = turn.effect
    if turn.is_compensation or "resolved" not in (effect.decision or {}):
        return None
    try:
        turn.declared.decode_result(load(effect.data or b"null", effect.encoding or JSON))
    except ValueNotOpened:  # there is no codec here: no fault of the result's
        return None
    except ValueNotDecodable as error:
        return error
    return None


def pause_of(turn: Turn, *, lookups: int, error: BaseException | None) -> float | None:
    """Give the seconds until the lookup is asked again, or None when it was asked often enough."""
    asking = turn.declared.asking
    return pause(
        turn.declared.lookup_fn or turn.declared.fn,
        wait=asking.wait,
        stop=asking.stop or _enough,
        attempt=lookups,
        elapsed=turn.effect.unknown_for,
        error=error or TimeoutError("the lookup could not tell"),
    )


def _enough(state: Any) -> bool:
    return bool(state.attempt_number >= LOOKUPS)


def says(predicate: Callable[[BaseException], bool], error: BaseException) -> bool:
    """Ask a declaration's predicate about an error; what it cannot say is no."""
    try:
        return predicate(error)
    except BaseException as broken:  # noqa: BLE001  # the user's predicate, even if it exits: what it cannot say stays unknown
        log.warning("effect.predicate", error=str(describe(broken)))
        return False
