"""When a dependency's breaker opens, and how it comes back: `[breakers]` for all, `[breakers.NAME]` for one of them.

Only the policy is here; it is kept in the ledger beside the breaker's state, so that all processes judge alike.
"""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

__all__ = ["BreakerPolicy", "Breakers"]

Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]


class BreakerPolicy(BaseModel):
    """One breaker: opens when enough of enough calls have failed, asks again by a few probes, ever more seldom."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    ratio: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] = 0.5  # failed and throttled calls, of all
    window: Seconds = 60.0  # seconds that are looked at
    min_volume: Count = 10  # calls in the window; fewer tell nothing
    in_a_row: Count = 20  # failed calls without a good one between them, over all processes, that open it at once
    probes: Count = 3  # calls that are let through half-open, and that must succeed
    open_for: Seconds = 15.0  # seconds until the first probe; doubled each time that the probes fail
    max_open: Seconds = 300.0  # seconds between probes at most

    @model_validator(mode="after")
    def _opens_for_at_most_its_maximum(self) -> Self:
        if self.open_for > self.max_open:
            raise ValueError(f"open_for is {self.open_for:g} s; it must be at most max_open ({self.max_open:g} s)")
        return self


class Breakers(BreakerPolicy):
    """The policy of every breaker, and the tables of those that differ from it in single keys."""

    model_config = ConfigDict(extra="allow")
    # pydantic's way to give tables of any name a type
    __pydantic_extra__: dict[str, BreakerPolicy] = Field(init=False)  # pyright: ignore[reportIncompatibleVariableOverride]

    @model_validator(mode="before")
    @classmethod
    def _tables_differ_in_single_keys(cls, values: Any) -> Any:  # what a before-validator gets is whatever was typed
        if not isinstance(values, dict):
            return values
        own = {key: value for key, value in values.items() if key in BreakerPolicy.model_fields}
        return {key: {**own, **value} if isinstance(value, dict) else value for key, value in values.items()}

    def of(self, name: str) -> BreakerPolicy:
        """Return the policy of a dependency."""
        own = (self.model_extra or {}).get(name)
        return own or BreakerPolicy(**{key: getattr(self, key) for key in BreakerPolicy.model_fields})
