"""What an operator sets, typed and frozen: every key, its default and what it accepts.

Defaults are overridden by `safepoint.toml`, and that by `SAFEPOINT_*`. A URL or a password is a secret: it is never
printed, not even in an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr, model_validator

from . import sources
from .breakers import Breakers
from .dependencies import Dependency
from .lanes import Lane

__all__ = ["Settings", "load", "reset", "settings"]

Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]


def _scheme(*accepted: str) -> AfterValidator:
    def check(url: SecretStr) -> SecretStr:
        scheme, found, _ = url.get_secret_value().partition("://")
        if not found or scheme not in accepted:
            raise ValueError("the URL starts with none of " + ", ".join(f"{name}://" for name in accepted))
        return url

    return AfterValidator(check)


LedgerUrl = Annotated[SecretStr, _scheme("postgresql", "postgres", "postgresql+psycopg")]
BrokerUrl = Annotated[SecretStr, _scheme("redis", "rediss", "valkey", "valkeys", "redis+socket", "amqp", "amqps")]
ModulePath = Annotated[str, Field(pattern=r"^[^\W\d]\w*(\.[^\W\d]\w*)*$")]
ObjectPath = Annotated[str, Field(pattern=r"^[\w.]+:[\w.]+$")]


class Table(BaseModel):
    """A table of the file: its values never change, and a key that it does not know is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class LedgerSettings(Table):
    """How long the database may take."""

    statement_timeout: Seconds = 30.0
    connect_timeout: Seconds = 5.0


class WorkerSettings(Table):
    """One worker: what it takes, and how long a step may go without a sign of life."""

    lanes: tuple[str, ...] = ("online", "recovery")
    pool: Literal["prefork", "threads"] = "prefork"
    concurrency: Count = 2
    lease: Seconds = 15.0  # a lost host is noticed after this
    beat: Seconds = 3.0
    drain: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 25.0  # what a running step gets after SIGTERM
    step_grace: Seconds = 5.0  # between the step's timeout and the end of its process
    cache_runs: Annotated[int, Field(ge=0)] = 256  # histories that a process keeps
    flow_timeout: Seconds = 10.0  # pure flow code between two awaits
    session_lock: bool = True  # off behind a transaction pooler without a direct URL

    @model_validator(mode="after")
    def _beats_within_the_lease(self) -> Self:
        # Two beats in a row may be late or lost before anybody is taken for dead.
        if self.beat > self.lease / 3:
            raise ValueError(f"beat is {self.beat:g} s; it must be at most a third of lease ({self.lease:g} s)")
        return self


class RelaySettings(Table):
    """The safety net behind the fast path, and the only publisher of limited lanes."""

    grace: Seconds = 1.0  # a row younger than this is still the fast path's
    redispatch_after: Seconds = 10.0  # published and never claimed for this long: published again
    batch: Count = 100
    poll: Seconds = 1.0
    window: Count | None = None  # messages of one lane in the broker; none: what keeps its workers busy


class ScanSettings(Table):
    """The orphan scan."""

    interval: Seconds = 1.0
    confirm: Seconds = 0.5  # a suspicion is looked at again after this
    max_recoveries: Count = 5  # a step that lost more owners than this is held as poison
    cancel_grace: Seconds = 30.0


class ValueSettings(Table):
    """How inputs and results are stored."""

    artifact_threshold: Count = 65_536  # bytes; larger results are stored outside the tables
    max_size: Count = 67_108_864  # bytes
    artifacts: str | None = None  # an fsspec URL; none is a folder under home
    codec: ObjectPath | None = None


class FlowerSettings(Table):
    """Flower as `safepoint flower` and `up` start it."""

    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65_535)] = 5555
    user: Annotated[str, Field(pattern=r"^[^:\s]+$")] = "safepoint"
    password: SecretStr | None = None  # none: one is generated


class Settings(Table):
    """The whole configuration."""

    ledger_url: LedgerUrl | None = None
    ledger_direct_url: LedgerUrl | None = None
    broker_url: BrokerUrl | None = None
    flows: tuple[ModulePath, ...] = ()
    home: Path = Field(default_factory=lambda: Path.cwd() / ".safepoint")
    log: Literal["console", "json"] = "console"
    ledger: LedgerSettings = LedgerSettings()
    worker: WorkerSettings = WorkerSettings()
    relay: RelaySettings = RelaySettings()
    scan: ScanSettings = ScanSettings()
    values: ValueSettings = ValueSettings()
    flower: FlowerSettings = FlowerSettings()
    lanes: dict[str, Lane] = Field(default_factory=lambda: sources.shipped_lanes(Lane))
    breakers: Breakers = Breakers()
    dependencies: dict[str, Dependency] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _workers_serve_lanes_that_exist(self) -> Self:
        for name in self.worker.lanes:
            if name not in self.lanes:
                raise ValueError(f"worker.lanes: no lane {name!r}; there are {', '.join(sorted(self.lanes))}")
        return self

    @model_validator(mode="after")
    def _lanes_have_queues_of_their_own(self) -> Self:
        taken: dict[str, str] = {}
        for name, lane in self.lanes.items():
            if (other := taken.setdefault(lane.queue, name)) != name:
                text = f"{lane.queue!r} is the queue of lane {other} already; accepted is one that no other lane has"
                raise ValueError(f"lanes.{name}.queue: {text}")
        return self

    @property
    def artifacts_url(self) -> str:
        """Where artifacts are stored."""
        return self.values.artifacts or f"file://{self.home / 'artifacts'}"


def load(path: Path | None = None, env: Mapping[str, str] | None = None) -> Settings:
    """Read the file (`path`, SAFEPOINT_CONFIG, or ./safepoint.toml if there is one) and the environment."""
    return sources.read(Settings, path, env)


@lru_cache(maxsize=1)
def settings() -> Settings:
    """Return this process's settings, read once."""
    return load()


def reset() -> None:
    """Forget this process's settings; the next call of `settings` reads them again."""
    settings.cache_clear()
