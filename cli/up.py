"""`up`: everything that a run needs, in the foreground: servers, schema, workers, relay, beat, Flower."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit, urlunsplit

import typer

from .children import Child, Children, Plan
from .options import Log, use_log

if TYPE_CHECKING:
    from ..config.resolve import Endpoints
    from ..config.settings import Settings
    from ..recovery.admission import Applied

WRONG_USAGE = 2

__all__ = ["plans", "safe_url", "up"]


def up(
    *,
    workers: Annotated[int | None, typer.Option(min=1, max=64, help="How many workers.", show_default="1")] = None,
    concurrency: Annotated[
        int | None, typer.Option(min=1, help="Steps at once in each worker.", show_default=False)
    ] = None,
    with_flower: Annotated[bool, typer.Option("--flower/--no-flower", help="Whether Flower is started.")] = True,
    log: Log = None,
) -> None:
    """Start everything in the foreground.

    Ctrl-C or SIGTERM ends all of it.
    """
    use_log(log)
    from ..config.resolve import endpoints  # noqa: PLC0415  # --help needs none of it
    from ..config.settings import settings  # noqa: PLC0415
    from ..ledger.connect import connect  # noqa: PLC0415
    from ..ledger.upgrade import upgrade  # noqa: PLC0415
    from ..recovery import admission, outcomes  # noqa: PLC0415
    from .access import who  # noqa: PLC0415

    here = settings()
    os.environ["SAFEPOINT_LOG"] = here.log
    # Before anything is started: from here on a signal ends what has been started so far.
    wish = Wish()
    wish.listen()
    ends = endpoints(here)
    try:
        state = upgrade(ends.ledger_url)
        with connect(ends.ledger_url, name="safepoint up") as connection:
            window, by = here.relay.window, who(None)
            applied = admission.apply(connection, here.lanes, window=window, by=by, why="safepoint up")
            outcomes.apply(connection, here.breakers)
        planned = plans(here, ends, workers=workers or 1, concurrency=concurrency, with_flower=with_flower)
        _announce(here, ends, planned, schema=str(state.current), with_flower=with_flower)
        _tell_lanes(ends, [one for one in applied if one.outcome == "changed"])
        _run(planned, wish, ends, json=here.log == "json")
    finally:
        _tell("stopping the embedded servers" if ends.embedded else "all children have ended")
        ends.close()
    if wish.hopeless:
        raise typer.Exit(WRONG_USAGE)


@dataclass(slots=True)
class Wish:
    """What the signals have asked for: to end, and to end at once."""

    signals: int = 0
    hopeless: str | None = None  # the child that cannot work as it is configured

    def give_up(self, child: Child, code: int) -> None:
        """End all when a child refuses its configuration at its first start: another start changes nothing."""
        if code == WRONG_USAGE and child.starts == 1:
            self.hopeless = child.plan.name

    def listen(self) -> None:
        """Turn SIGINT, SIGTERM and SIGHUP into a wish."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._hear)

    def _hear(self, _number: int, _frame: FrameType | None) -> None:
        self.signals += 1

    @property
    def is_over(self) -> bool:
        """Whether all is to end."""
        return self.signals > 0 or self.hopeless is not None

    def is_urgent(self) -> bool:
        """Whether somebody has asked twice."""
        return self.signals > 1


def plans(here: Settings, ends: Endpoints, *, workers: int, concurrency: int | None, with_flower: bool) -> list[Plan]:
    """Say which processes there are to be, and in which order they are ended.

    Flower and beat first, then the workers, which drain; the relay last, because it sends what they have left.
    """
    from ..config.lanes import CONTROL  # noqa: PLC0415  # --help needs none of it

    env = {**os.environ, "SAFEPOINT_LEDGER_URL": ends.ledger_url, "SAFEPOINT_BROKER_URL": ends.broker_url}
    env |= {"SAFEPOINT_LEDGER_DIRECT_URL": ends.direct_url, "SAFEPOINT_HOME": str(here.home), "PYTHONUNBUFFERED": "1"}
    program = [sys.executable, "-m", __name__.partition(".")[0]]
    drain = here.worker.drain + here.worker.step_grace + 5.0
    slots = ["--concurrency", str(concurrency)] if concurrency else []
    # Everything that a run needs: a lane of one's own as well, unless somebody has said which lanes workers take.
    said = here.worker.lanes and "lanes" in here.worker.model_fields_set
    served = here.worker.lanes if said else tuple(lane for lane in here.lanes if lane != CONTROL)
    found = [
        Plan(
            "control",
            [*program, "worker", "--name", CONTROL, "--lanes", CONTROL, "--pool", "threads", "--concurrency", "1"],
            env,
            round=2,
        ),
        Plan("relay", [*program, "relay"], env, round=3),
        Plan("beat", [*program, "beat"], env, round=0),
    ]
    for number in range(1, workers + 1):
        name = f"worker-{number}"
        found.append(
            Plan(
                name,
                [*program, "worker", "--name", name, "--lanes", ",".join(served), *slots],
                env,
                round=1,
                patience=drain,
            )
        )
    if with_flower:
        found.append(Plan("flower", [*program, "flower"], env, round=0, patience=3.0))
    return found


def safe_url(url: str) -> str:
    """Give a URL without its password."""
    parts = urlsplit(url)
    if parts.password is None:
        return url
    place = parts.netloc.rpartition("@")[2]
    user = f"{parts.username}:***@" if parts.username else "***@"
    return urlunsplit(parts._replace(netloc=user + place))


def _announce(here: Settings, ends: Endpoints, planned: list[Plan], *, schema: str, with_flower: bool) -> None:
    where = f", embedded under {here.home}" if ends.embedded else ""
    _tell(f"ledger   {safe_url(ends.ledger_url)} (schema {schema}{where})")
    _tell(f"broker   {safe_url(ends.broker_url)}")
    if with_flower:
        from .processes import flower_password, password_file  # noqa: PLC0415  # pulls nothing, but belongs to Flower

        flower_password(here)
        secret = "configured" if here.flower.password else f"in {password_file(here)}"
        _tell(f"flower   http://{here.flower.host}:{here.flower.port} (user {here.flower.user}, password {secret})")
    _tell(f"flows    {', '.join(here.flows) or 'none: set SAFEPOINT_FLOWS to the modules that hold yours'}")
    _tell(f"starting {', '.join(plan.name for plan in planned)}; Ctrl-C ends all")


def _tell_lanes(ends: Endpoints, changed: Sequence[Applied]) -> None:
    """Say what the file has changed of the lanes, and what of it does not hold because people have set it."""
    from ..ledger.lane_views import list_lanes  # noqa: PLC0415  # as above
    from ..ledger.snapshot import snapshot  # noqa: PLC0415
    from .lane_changes import told  # noqa: PLC0415
    from .lanes import overridden  # noqa: PLC0415

    with snapshot(ends.ledger_url, name="safepoint up") as connection:
        lines = [line for lane in list_lanes(connection) for line in overridden(lane)]
    for line in [*(line for one in changed for line in told(one)), *lines]:
        _tell(f"lanes    {line}")


def _run(planned: list[Plan], wish: Wish, ends: Endpoints, *, json: bool) -> None:
    write = _write_as_is if json else _write_with_name
    children = Children(planned, tell=_tell, write=write, died=wish.give_up)
    try:
        children.start()
        while not wish.is_over:
            children.tend()
            for server in ends.embedded.mend() if ends.embedded else ():
                _tell(f"the embedded {server} had ended; it was started again")
        if wish.hopeless:
            _tell(f"{wish.hopeless} cannot work as it is configured: see what it said, mend it, and start again")
        _tell("ending: workers finish the steps that they execute; once more ends at once")
    finally:
        children.stop(hurry=wish.is_urgent)


def _tell(text: str) -> None:
    if os.environ.get("SAFEPOINT_LOG") == "json":
        from ..ledger.document import dumps  # noqa: PLC0415  # only this form needs it

        text = dumps({"process": "up", "event": text, "level": "info"})
    else:
        text = f"up        | {text}"
    _line(text.encode())


def _write_with_name(name: str, line: bytes) -> None:
    _line(f"{name:<9} | ".encode() + line)


def _write_as_is(_name: str, line: bytes) -> None:
    _line(line)


def _line(line: bytes) -> None:
    try:
        sys.stdout.buffer.write(line + b"\n")
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        # Whoever read this has gone; the children go on until they are told to end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
