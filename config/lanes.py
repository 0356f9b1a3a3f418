"""A lane: a Celery queue with the policy that admits steps to it.

Only the policy is here; it is applied in the ledger when rows leave the outbox, so that it is one for all relays.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

__all__ = ["NAME_PATTERN", "Lane"]

NAME_PATTERN = r"^[a-z][a-z0-9_-]{0,39}$"


def _no_limit(value: object) -> object:
    return None if value == "unlimited" else value


# TOML has no null: the word lifts a limit that the shipped defaults set.
_Unlimited = BeforeValidator(_no_limit)
Rate = Annotated[Annotated[float, Field(ge=0, allow_inf_nan=False)] | None, _Unlimited]
Count = Annotated[Annotated[int, Field(ge=0)] | None, _Unlimited]
Weight = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Burst = Annotated[Annotated[int, Field(ge=1)] | None, _Unlimited]


class Lane(BaseModel):
    """One lane's queue and limits; a limit of 0 admits nothing, none admits everything."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    name: Annotated[str, Field(pattern=NAME_PATTERN)]
    queue: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,100}$")] = ""
    rate: Rate = None  # steps a second
    burst: Burst = None  # steps at once after a quiet time
    in_flight: Count = None  # steps published and not yet ended
    window: Count = None  # messages in the broker that nobody has claimed; more wait in the ledger
    inline_slice: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0  # seconds
    tenant_in_flight: Count = None  # of them, of one tenant
    weights: dict[str, Weight] = Field(default_factory=dict)  # a tenant's turns for each one of a tenant without weight
    order: Literal["priority", "deadline"] = "priority"  # what goes first within a tenant; the other one comes next
    stop_on_breaker: bool = True  # steps of an open breaker wait; false lets them through all the same
    paused: bool = False  # nothing of it starts

    @model_validator(mode="before")
    @classmethod
    def _named_like_its_queue(cls, values: Any) -> Any:  # what a before-validator gets is whatever was typed
        if isinstance(values, dict) and not values.get("queue"):
            return {**values, "queue": values.get("name", "")}
        return values

    def as_policy(self) -> dict[str, Any]:
        """Return what is set and is no default, as the ledger keeps it."""
        return self.model_dump(mode="json", exclude={"name", "queue"}, exclude_defaults=True)

    @property
    def limited(self) -> bool:
        """Whether admission is counted: such a lane is published by the relay alone."""
        return self.rate is not None or self.in_flight is not None or self.tenant_in_flight is not None

    @property
    def bucket(self) -> int:
        """The size of the token bucket: the burst, or one second's worth of the rate."""
        return self.burst if self.burst is not None else max(1, math.ceil(self.rate or 0))
