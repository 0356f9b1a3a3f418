"""`demo`: the incident agent on the embedded stack, with workers killed under it, and what came of it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any
from urllib.request import urlopen
from uuid import UUID

import typer

from ..config.errors import SafepointError
from .children import Child, Children, Plan
from .console import document, say, table
from .options import Json
from .proof import EXPENSIVE, PAGE, TICKET, Evidence, Proof, prove
from .second_scene import second_scene
from .words import clock, short

if TYPE_CHECKING:
    from ..config.embedded import EmbeddedStack

__all__ = ["demo"]

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "incident"
THINKING = 5.0  # seconds that the expensive step takes
KILL_AFTER = 0.4  # of them: a slow machine still comes in time
PATIENCE = 90.0  # seconds for everything between start and end of the run


class DemoFailedError(SafepointError):
    """The demo failed: {text}. The logs are in {folder}."""

    text: str
    folder: str


def demo(
    *,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the demo's data and logs.")] = False,
    as_json: Json = False,
) -> None:
    """Kill an agent's workers where it hurts, and see everything done once.

    Runs the incident agent of the repository; needs no server and no configuration. Exit code 0 only if the ledger,
    the model's bill and the ticket service agree that nothing was lost and nothing was done twice.
    """
    if not (EXAMPLE / "incident_agent.py").exists():
        text = "the demo runs the agent in examples/incident, which is in the repository and not in the wheel"
        raise SafepointError(f"{text}: clone the repository and type make demo")
    folder = Path(tempfile.mkdtemp(prefix="safepoint-demo-"))
    folder.chmod(0o711)  # the embedded servers may run as another user, who must get through
    with _signals_end_it():
        stage = Stage(folder, quiet=as_json)
        proof, found = _play(stage)
    if as_json:
        told = {"holds": proof.holds, "run_id": found.run["run_id"], "saved": proof.saved}
        document({**told, **asdict(proof), "seconds": stage.seconds})
    else:
        _show(proof, found, seconds=stage.seconds)
    if keep or not proof.holds:
        say(f"Data and logs are in {folder}.")
    else:
        shutil.rmtree(folder, ignore_errors=True)
    raise typer.Exit(0 if proof.holds else 1)


def _play(stage: Stage) -> tuple[Proof, Evidence]:
    try:
        try:
            return stage.play()
        finally:
            stage.clear()
    except SafepointError as error:
        raise DemoFailedError(text=str(error), folder=str(stage.folder)) from error
    except KeyboardInterrupt:
        shutil.rmtree(stage.folder, ignore_errors=True)
        raise


@contextmanager
def _signals_end_it() -> Iterator[None]:
    """Turn SIGTERM into what Ctrl-C does, so that what was started is ended."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@dataclass(slots=True)
class Stage:
    """Everything that the demo starts, and what it has seen."""

    folder: Path
    quiet: bool
    begun: float = field(default_factory=time.monotonic)
    seconds: dict[str, float] = field(default_factory=dict)
    deaths: list[int] = field(default_factory=list)
    stack: EmbeddedStack | None = None
    children: Children | None = None
    tickets_url: str = ""
    killed_at: datetime | None = None
    seen: int = 0

    def play(self) -> tuple[Proof, Evidence]:
        """Set up, run, kill, and judge."""
        self._set_up()
        arguments = json.loads((EXAMPLE / "input" / "alert.json").read_text())
        run = self.enqueue("incident", arguments)
        self.tell(f"Run {run}: an alert, its metrics and logs, a diagnosis, a ticket")
        ended = self.until(lambda: self.step_on(run), what="the run to end")
        self._mark("run")
        held, paged = second_scene(self)
        self._mark("second scene")
        found = Evidence(
            run=ended["run"],
            events=ended["events"],
            bill=[json.loads(line) for line in (self.folder / "bill").read_text().splitlines()],
            tickets=_get(f"{self.tickets_url}/tickets"),
            killed_at=self.killed_at or datetime.now(UTC),
            deaths=self.deaths,
            held=held,
            paged=paged,
            pages=_get(f"{self.tickets_url}/pages"),
        )
        return prove(found), found

    def tell(self, text: str) -> None:
        """Say it, unless only the document is wanted."""
        if not self.quiet:
            say(text)

    def _mark(self, name: str) -> None:
        now = time.monotonic()
        self.seconds[name], self.begun = round(now - self.begun, 1), now

    # --- before the run ---------------------------------------------------------------------------------------------

    def _set_up(self) -> None:
        from ..config import embedded  # noqa: PLC0415  # --help needs none of it
        from ..ledger.upgrade import upgrade  # noqa: PLC0415

        self.tell("Starting PostgreSQL and Valkey, two workers, relay, beat and a ticket service ...")
        self.stack = embedded.ensure(self.folder / "home")
        upgrade(self.stack.ledger_url)
        self.children = Children(self._plans(self.stack), tell=self._note, write=self._write, died=self._died)
        self.children.start()
        self.tickets_url = self.until(self._find_tickets, what="the ticket service")
        self.until(self._workers_live, what="two workers")
        self._mark("set-up")

    def _plans(self, stack: EmbeddedStack) -> list[Plan]:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("SAFEPOINT_")}
        path = os.pathsep.join(filter(None, (str(EXAMPLE), os.environ.get("PYTHONPATH"))))
        env = {
            **clean,
            "PYTHONPATH": path,
            "PYTHONUNBUFFERED": "1",
            "TMPDIR": str(self.folder),  # what killed processes leave behind goes with the folder
            "SAFEPOINT_LEDGER_URL": stack.ledger_url,
            "SAFEPOINT_BROKER_URL": stack.broker_url,
            "SAFEPOINT_HOME": str(self.folder / "home"),
            "SAFEPOINT_FLOWS": "incident_agent,paging_agent",
            "SAFEPOINT_LOG": "json",
            "INCIDENT_MODEL_SECONDS": str(THINKING),
            "INCIDENT_BILL": str(self.folder / "bill"),
        }
        # Whoever has the ticket made dies before it has the number; so does whoever lets the phone ring. Once each.
        trap = {
            "SAFEPOINT_CRASH_POINTS": "1",
            "SAFEPOINT_CRASH": f"effect.after@{TICKET},effect.after@{PAGE}",
            "SAFEPOINT_CRASH_TARGET": "worker",
            "SAFEPOINT_CRASH_ONCE": str(self.folder / "crashed"),
        }
        port = self._free_port()
        self.tickets_url = f"http://127.0.0.1:{port}"
        service = [sys.executable, str(EXAMPLE / "ticket_service.py"), "--port", str(port)]
        worker = {**env, **trap, "TICKETS_URL": self.tickets_url}
        program = [sys.executable, "-m", __name__.partition(".")[0]]
        control = [*program, "worker", "--name", "control", "--lanes", "control", "--pool", "threads"]
        return [
            Plan("tickets", [*service, "--file", str(self.folder / "tickets.sqlite")], clean, round=2, patience=2.0),
            Plan("relay", [*program, "relay"], env, round=1, patience=5.0),
            Plan("beat", [*program, "beat"], env, round=0, patience=3.0),
            Plan("control", [*control, "--concurrency", "1"], env, round=1, patience=5.0),
            Plan("worker-1", [*program, "worker", "--name", "worker-1"], worker, round=0, patience=8.0),
            Plan("worker-2", [*program, "worker", "--name", "worker-2"], worker, round=0, patience=8.0),
        ]

    def _free_port(self) -> int:
        from ..config.process import free_port  # noqa: PLC0415  # as above

        return free_port()

    def _find_tickets(self) -> str | None:
        try:
            _get(f"{self.tickets_url}/health")
        except OSError:
            return None
        return self.tickets_url

    def _workers_live(self) -> bool:
        from ..ledger.fleet import list_nodes  # noqa: PLC0415  # as above
        from ..ledger.snapshot import snapshot  # noqa: PLC0415

        assert self.stack is not None
        with snapshot(self.stack.ledger_url, name="safepoint demo") as connection:
            return sum("online" in node["lanes"] for node in list_nodes(connection) if node["state"] == "live") >= 2

    # --- the run ----------------------------------------------------------------------------------------------------

    def enqueue(self, flow: str, arguments: Mapping[str, object]) -> UUID:
        """Accept a run of the demo's."""
        from ..tasks.client import Client  # noqa: PLC0415  # as above

        assert self.stack is not None
        with Client(self.stack.ledger_url) as client:
            return UUID(client.enqueue(flow, arguments, tags={"demo": "1"}).id)

    def step_on(self, run: UUID) -> dict[str, Any] | None:
        """Look once: show what is new, kill when it is time, and return the run with its events when it is over."""
        from ..ledger.snapshot import snapshot  # noqa: PLC0415  # as above
        from ..ledger.views import list_events, read_run  # noqa: PLC0415
        from ..ledger.why import open_steps  # noqa: PLC0415

        assert self.stack is not None
        with snapshot(self.stack.ledger_url, name="safepoint demo") as connection:
            found, events = read_run(connection, run), list_events(connection, run)
            thinking = [
                step for step in open_steps(connection, [run]).get(run, ()) if step.name == EXPENSIVE and step.owner
            ]
        for event in events[self.seen :]:
            if event["type"] != "step.scheduled":
                self.tell(_line(event))
        self.seen = len(events)
        if self.killed_at is None and thinking and (thinking[0].claimed_ago or 0) > THINKING * KILL_AFTER:
            self._kill(str(thinking[0].owner))
        if found is None or found["status"] not in {"succeeded", "failed", "cancelled", "held"}:
            return None
        return {"run": found, "events": events}

    def _kill(self, node_id: str) -> None:
        from ..ledger.fleet import list_nodes  # noqa: PLC0415  # as above
        from ..ledger.snapshot import snapshot  # noqa: PLC0415

        assert self.stack is not None
        with snapshot(self.stack.ledger_url, name="safepoint demo") as connection:
            pid = next(node["pid"] for node in list_nodes(connection) if node["id"] == node_id)
        self.killed_at = datetime.now(UTC)
        os.kill(pid, signal.SIGKILL)
        self.tell(f"  >>> kill -9 {pid}: {node_id} dies in the middle of {EXPENSIVE}")

    def _died(self, child: Child, code: int) -> None:
        if child.plan.name.startswith("worker-"):
            self.deaths.append(code)
            what = {2: "the ticket was made, and before it had the number", 3: "the phone had rung"}.get(
                len(self.deaths)
            )
            if what:
                self.tell(f"  >>> {child.plan.name} has died of signal {-code}: after {what}")

    def until(self, look: Callable[[], Any], *, what: str) -> Any:
        """Look until there is an answer, and tend the children meanwhile."""
        assert self.children is not None
        ends = time.monotonic() + PATIENCE
        while time.monotonic() < ends:
            answer = look()
            if answer:
                return answer
            self.children.tend(0.1)
        raise SafepointError(f"waited {PATIENCE:g} s for {what}")

    # --- after it ---------------------------------------------------------------------------------------------------

    def clear(self) -> None:
        """End everything that was started."""
        self.tell("Ending everything ...\n")
        if self.children is not None:
            begun = time.monotonic()
            self.children.stop(hurry=lambda: time.monotonic() - begun > 12)
        if self.stack is not None:
            self.stack.close()
        self._mark("end")

    def _note(self, text: str) -> None:
        self._write("demo", text.encode())

    def _write(self, name: str, line: bytes) -> None:
        with (self.folder / "demo.log").open("ab") as log:
            log.write(f"{name:<9} | ".encode() + line + b"\n")


def _line(event: Mapping[str, Any]) -> str:
    """Give an event in the few words that matter here."""
    data = event["data"]
    match event["type"]:
        case "step.started":
            # It is written with the commit; what it tells of is when the step was claimed.
            words = f"claimed {clock(data['at'])} by {data['node']}, claim {data['epoch']}"
        case "step.committed":
            words = f"{data['tokens']:,} tokens" if "tokens" in data else ""
        case "step.lost":
            words = f"{data['node']} is gone"
        case "effect.executing":
            words = f"request {data['attempt']}, by {data['node']}"
        case "effect.unknown":
            words = "nobody knows whether it was executed"
        case "effect.settled":
            words = f"{data['status']}: {data.get('why') or 'its own answer'}"
        case _:
            words = short(data.get("text", ""), width=70)
    return f"  {clock(event['at'])}  {event['type']:<16}  {event['key'] or '':<26}  {words}".rstrip()


def _get(url: str) -> Any:
    with urlopen(url, timeout=5) as answer:  # noqa: S310  # our own service on this machine
        return json.load(answer)


def _show(proof: Proof, found: Evidence, *, seconds: dict[str, float]) -> None:
    names = ("STEP", "#RAN", "#LOOKED UP", "#COMMITTED", "#TOKENS", "#WOULD HAVE RUN FROM SCRATCH")
    rows = [
        (line.step, str(line.ran), str(line.looked_up), str(line.committed), f"{line.tokens:,}", str(line.from_scratch))
        for line in proof.lines
    ]
    table(names, rows)
    kills = (f"in the middle of {EXPENSIVE}", "after the ticket was made and before its number was known")
    for kill, took in zip(kills, proof.recoveries, strict=False):
        say(f"Killed {kill}: the next step was under way after {took:.2f} s.")
    say(
        f"Tokens: {proof.billed:,} billed, {proof.lost:,} of them for the call that was cut off;"
        f" from scratch: {proof.from_scratch:,}. Saved: {proof.saved:,}.",
        *(f"Ticket {ticket['number']}: {ticket['title']}" for ticket in found.tickets),
        "",
        *(f"{'  ok' if check.holds else 'FAIL'}  {check.text}" for check in proof.checks),
        "",
        f"Set-up {seconds['set-up']:g} s, run {seconds['run']:g} s, second scene {seconds['second scene']:g} s,"
        f" end {seconds['end']:g} s.",
    )
