"""`replay`: drives a run's flow again, purely from its history, and says whether today's code still agrees with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

import typer

from ..config.errors import SafepointError
from .access import ledger, run_id
from .console import document, say
from .options import Json, RunId

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from ..ledger.steps import Record
    from ..tasks.driver import Driver
    from ..tasks.flow import Flow

__all__ = ["replay"]


class FlowMissingError(SafepointError):
    """The flow {flow} cannot be imported here: name its module in SAFEPOINT_FLOWS. Flows here: {known}."""

    flow: str
    known: str


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a replay came to: `agrees` with the history, `diverges` from it, or `breaks` with a bug of the flow's."""

    run_id: str
    flow: str
    version: str
    code_version: str
    status: str
    generation: int
    records: int
    outcome: str
    text: str
    stands_at: Sequence[str]

    @property
    def agrees(self) -> bool:
        """Whether the code does what the history says."""
        return self.outcome not in {"diverges", "breaks"}


def replay(run: RunId, *, as_json: Json = False) -> None:
    """Check today's code against a run's history.

    Drives the flow again from the history alone and changes nothing. Exit code 1 when they differ.
    """
    from ..config.settings import settings  # noqa: PLC0415  # only this verb imports flows
    from ..ledger.snapshot import snapshot  # noqa: PLC0415
    from ..tasks import registry  # noqa: PLC0415

    registry.load(settings().flows)
    with ledger() as ends, snapshot(ends.ledger_url, name="safepoint replay") as connection:
        found = _replay(connection, run_id(run, connection))
    if as_json:
        document({**asdict(found), "diverged": found.outcome == "diverges"})
    else:
        code = "" if found.code_version == found.version else f" (run under version {found.code_version})"
        say(f"{found.flow}@{found.version}{code}, {found.records} committed results: {found.text}")
        if found.stands_at:
            say("It stands at: " + ", ".join(found.stands_at))
    raise typer.Exit(0 if found.agrees else 1)


def _replay(connection: Connection, id_: UUID) -> Replayed:
    from ..ledger import history  # noqa: PLC0415  # as above
    from ..ledger.views import read_run  # noqa: PLC0415
    from ..tasks.driver import Driver  # noqa: PLC0415
    from ..tasks.histories import run_info  # noqa: PLC0415

    shown = read_run(connection, id_) or {}
    # The driver's own connection, in the snapshot's transaction: what is shown and what is fed belong together.
    past = history.read(cast("Any", connection.connection.driver_connection), id_)
    flow = _flow(shown["flow"], shown["version"])
    info = run_info(id_, past.run, generation=past.generation, data=past.input, encoding=past.input_encoding)
    driver = Driver(flow, run=info, load=_loader(shown["tenant"]))
    try:
        _feed(driver, past.rows)
        outcome, text = judge(driver, status=shown["status"], open_steps=shown["current"])
        stands_at = [str(key) for key in driver.asked]
    finally:
        driver.close()
    return Replayed(
        run_id=str(id_), flow=shown["flow"], version=shown["version"], code_version=flow.version,
        status=shown["status"], generation=past.generation, records=len(past.rows), outcome=outcome, text=text,
        stands_at=stands_at,
    )  # fmt: skip


def _flow(name: str, version: str) -> Flow[..., Any]:
    from ..tasks import registry  # noqa: PLC0415  # as above

    found = registry.find_flow(name, version)
    if found is None:
        known = ", ".join(sorted(f"{own}@{its}" for own, its in registry.flows())) or "none"
        raise FlowMissingError(flow=f"{name}@{version}", known=known)
    return found


def _loader(tenant: str) -> Any:
    """Return what reads results that are stored outside the tables."""
    from ..config.settings import settings  # noqa: PLC0415  # as above
    from ..ledger import artifacts  # noqa: PLC0415
    from ..ledger.seal import Seal  # noqa: PLC0415

    store, seal = artifacts.Store(settings().artifacts_url), Seal.load(settings().values.codec)

    def load(data: bytes, encoding: str, /) -> bytes:
        return artifacts.internalize(data, encoding, tenant=tenant, store=store, seal=seal)

    return load


def _feed(driver: Driver, history: Sequence[Record]) -> None:
    from ..config.settings import settings  # noqa: PLC0415  # as above
    from ..tasks.histories import Histories, Replay, record_of  # noqa: PLC0415
    from ..tasks.watchdog import Watchdog  # noqa: PLC0415

    # Through the workers' own way: flow code that never ends ends here as well.
    histories = Histories(size=0, watchdog=Watchdog(settings().worker.flow_timeout))
    histories.feed(Replay(driver, "", -1), [record_of(row) for row in history])


def judge(driver: Driver, *, status: str, open_steps: Sequence[str]) -> tuple[str, str]:
    """Compare what the flow asks for with what the ledger holds open."""
    from ..tasks import outcome as ends  # noqa: PLC0415  # as above

    match driver.outcome:
        case ends.Diverged(text=text):
            return "diverges", f"it diverges: {text}"
        case ends.FlowError(text=text):
            return "breaks", f"the flow has a bug: {text}"
        case None:
            return _compare(driver, open_steps, status=status)
        case ended:
            name = _ENDS[type(ended).__name__]
            agrees = status in {name, "cancelling", "failed"} or name == "continued"
            return ("ended", f"it agrees and has {name}.") if agrees else _mismatch(name, status)


_ENDS = {"Returned": "succeeded", "Failed": "failed", "WasCancelled": "cancelled", "Continued": "continued"}


def _mismatch(name: str, status: str) -> tuple[str, str]:
    return "diverges", f"it diverges: by its history the flow has {name}, but the run is {status}"


def _compare(driver: Driver, open_steps: Sequence[str], *, status: str) -> tuple[str, str]:
    asked = {str(key) for key in driver.asked}
    held = {key for key in open_steps if not key.rpartition("/")[2].startswith("@")}
    if status == "succeeded":
        return "diverges", f"it diverges: the run has succeeded, but the flow still asks for {', '.join(sorted(asked))}"
    extra, missing = sorted(held - asked), sorted(asked - held)
    if extra:
        return "diverges", f"it diverges: open in the ledger is {', '.join(extra)}, which the flow does not ask for"
    if missing and held:
        return "diverges", f"it diverges: the flow asks for {', '.join(missing)}, which the ledger does not hold open"
    return "agrees", "it agrees with its history."
