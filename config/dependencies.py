"""What a dependency bears: `[dependencies.NAME]`, the limits that its provider or its administrator has given.

Nothing is enforced by them. `safepoint lanes plan` computes from them how many workers, and which rate of recovery, the
narrowest one bears; what enforces are lanes, breakers and the dependency itself.
"""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

__all__ = ["HELD", "Dependency"]

Number = Annotated[float, Field(gt=0, le=1e12, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1, le=1_000_000_000)]
Held = Annotated[float, Field(ge=0, le=1000, allow_inf_nan=False)]

# Connections that processes of ours hold as long as they live: a worker's main process, and each of its slots. Counted
# on prefork workers with PostgreSQL and Valkey; with RabbitMQ a main process has fewer.
HELD = {"ledger": (1.0, 1.0), "broker": (4.0, 1.0)}


class Dependency(BaseModel):
    """The limits of one dependency, by the name that steps have in uses=; of several the narrowest holds.

    `ledger` and `broker` are PostgreSQL and the broker: there `connections` is what the workers may take of them.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    tokens_per_minute: Number | None = None
    requests_per_minute: Number | None = None
    requests_per_second: Number | None = None
    connections: Count | None = None  # calls at once
    seconds_per_call: Number | None = None  # none: the median of what the ledger has seen within a day
    tokens_per_call: Number | None = None  # none: as above
    share_of_recovery: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] = 0.25  # the rest is for live steps
    connections_per_worker: Held | None = None  # held all the time; none: while calling
    connections_per_slot: Held | None = None  # as above, by each slot

    @model_validator(mode="after")
    def _says_a_limit(self) -> Self:
        limits = ("tokens_per_minute", "requests_per_minute", "requests_per_second", "connections")
        if all(getattr(self, key) is None for key in limits):
            raise ValueError(f"there is no limit; set one of {', '.join(limits)}")
        if self.is_held and self.connections is None:
            raise ValueError("connections_per_worker and connections_per_slot belong to connections; set it as well")
        if self.is_held and not (self.connections_per_worker or self.connections_per_slot):
            raise ValueError("connections_per_worker and connections_per_slot are both 0: nothing would be held")
        return self

    @property
    def is_held(self) -> bool:
        """Whether its connections are those of processes, and not of calls."""
        return self.connections_per_worker is not None or self.connections_per_slot is not None

    def held(self, name: str) -> tuple[float, float] | None:
        """Return the connections that a worker and that each of its slots holds; None: those of calls."""
        worker, slot = HELD.get(name, (0.0, 0.0))
        if not self.is_held:
            return (worker, slot) if name in HELD and self.connections is not None else None
        given = (self.connections_per_worker, self.connections_per_slot)
        return (worker if given[0] is None else given[0], slot if given[1] is None else given[1])
