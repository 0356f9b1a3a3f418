"""A lane: a Celery queue with the policy that admits steps to it.

Only the policy is here; it is applied in the ledger when rows leave the outbox, so that it is one for all relays.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, model_validator
from pydantic_core import PydanticCustomError

from .explain import Unset

__all__ = ["CONTROL", "NAME_PATTERN", "RECOVERY", "UNLIMITED", "Lane"]

# Lanes that the protocol itself sends to, as defaults.toml has them.
CONTROL = "control"  # scans and housekeeping
RECOVERY = "recovery"  # what came back from a lost worker

NAME_PATTERN = r"^[a-z][a-z0-9_-]{0,39}$"
UNLIMITED = "unlimited"
SLOWEST = 1e-5  # steps a second: about one a day; below that the ledger's arithmetic has no numbers


def _number(value: object) -> object:
    if isinstance(value, bool):  # Python takes it for 1
        raise PydanticCustomError("no_number", "no number")
    return value


def _no_limit(value: object) -> object:
    return None if value == UNLIMITED else _number(value)


def _switch(value: object) -> object:
    if not isinstance(value, bool) and str(value).lower() not in {"true", "false"}:
        raise PydanticCustomError("no_switch", "neither true nor false")
    return value


# TOML has no null: the word lifts a limit that the shipped defaults, or a person, have set. The upper bounds are
# those of the ledger's columns, and of arithmetic that must not overflow in the middle of an admission.
_Unlimited = (BeforeValidator(_no_limit), Unset(UNLIMITED))
Rate = Annotated[Annotated[float, Field(ge=0, le=1_000_000, allow_inf_nan=False)] | None, *_Unlimited]
Count = Annotated[Annotated[int, Field(ge=0, le=1_000_000_000)] | None, *_Unlimited]
Some = Annotated[Annotated[int, Field(ge=1, le=1_000_000_000)] | None, *_Unlimited]
Weight = Annotated[float, BeforeValidator(_number), Field(ge=0.001, le=1000, allow_inf_nan=False)]
Seconds = Annotated[float, BeforeValidator(_number), Field(ge=0, le=86_400, allow_inf_nan=False)]
Switch = Annotated[bool, BeforeValidator(_switch)]
Tenant = Annotated[str, Field(min_length=1, max_length=200)]


class Lane(BaseModel):
    """One lane's queue and limits; a limit of 0 admits nothing, none admits everything."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    name: Annotated[str, Field(pattern=NAME_PATTERN)]
    queue: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,100}$")] = ""
    rate: Rate = None  # steps a second
    burst: Some = None  # steps at once after a quiet time
    in_flight: Count = None  # steps published and not yet ended
    window: Some = None  # messages in the broker that nobody has claimed; more wait in the ledger
    inline_slice: Seconds = 0.0
    tenant_in_flight: Count = None  # of them, of one tenant
    weights: dict[Tenant, Weight] = Field(default_factory=dict)  # a tenant's turns for each one of a tenant without
    order: Literal["priority", "deadline"] = "priority"  # what goes first within a tenant; the other one comes next
    stop_on_breaker: Switch = True  # steps of an open breaker wait; false lets them through all the same
    paused: Switch = False  # nothing of it starts

    @model_validator(mode="before")
    @classmethod
    def _named_like_its_queue(cls, values: Any) -> Any:  # what a before-validator gets is whatever was typed
        if isinstance(values, dict) and not values.get("queue"):
            return {**values, "queue": values.get("name", "")}
        return values

    @model_validator(mode="after")
    def _does_not_contradict_itself(self, info: ValidationInfo) -> Self:
        # A person who changes one key is not told off for two others that the file and somebody else have set.
        changed = (info.context or {}).get("changed")
        for keys, text in self._contradictions():
            if changed is None or changed & keys:
                raise ValueError(text)
        return self

    def _contradictions(self) -> Iterator[tuple[frozenset[str], str]]:
        if self.burst is not None and self.rate is None and "rate" not in self.model_fields_set:
            text = f"burst is {self.burst}, and there is no rate that it could belong to; set rate as well"
            yield frozenset({"burst"}), text
        if self.rate and self.rate < SLOWEST:
            text = f"rate is {self.rate:g}; it must be 0, which lets nothing through, or at least {SLOWEST:.5f}"
            yield frozenset({"rate"}), text
        most = self.in_flight
        if most is not None and self.tenant_in_flight is not None and self.tenant_in_flight > most:
            text = f"tenant_in_flight is {self.tenant_in_flight}; it must be at most in_flight ({most})"
            yield frozenset({"in_flight", "tenant_in_flight"}), text

    def as_policy(self) -> dict[str, Any]:
        """Return what is set and is no default, as the ledger keeps it."""
        policy = self.model_dump(mode="json", exclude={"name", "queue"}, exclude_defaults=True)
        if self.rate is None:
            policy.pop("burst", None)  # the shipped one, of a rate that has been lifted
        return policy

    @classmethod
    def of(cls, name: str, policy: Mapping[str, Any], *, changed: frozenset[str] = frozenset()) -> Self:
        """Make a lane of what the ledger keeps; keys of a later release are left out.

        Only contradictions that have to do with the `changed` keys are refused.
        """
        known = {key: value for key, value in policy.items() if key in cls.model_fields}
        return cls.model_validate({**known, "name": name}, context={"changed": changed})

    @property
    def limited(self) -> bool:
        """Whether admission is counted: such a lane is published by the relay alone."""
        return self.rate is not None or self.in_flight is not None or self.tenant_in_flight is not None

    @property
    def bucket(self) -> int:
        """The size of the token bucket: the burst, or one second's worth of the rate."""
        return self.burst if self.burst is not None else max(1, math.ceil(self.rate or 0))
