"""Verbs that are one long-lived process each: `worker`, `relay`, `beat`, `flower`."""

from __future__ import annotations

import json
import logging
import os
import secrets
import signal
from contextlib import closing
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..config.errors import ConfigError, Problem
from .options import Log, lane_names, use_log

if TYPE_CHECKING:
    from ..config.settings import Settings

__all__ = ["Pool", "beat", "flower", "flower_password", "relay", "worker"]


class Pool(StrEnum):
    """How a worker executes several steps at once."""

    PREFORK = "prefork"
    THREADS = "threads"


def _begin(process: str) -> Settings:
    from ..config.settings import settings  # noqa: PLC0415  # --help needs none of it
    from .logs import configure  # noqa: PLC0415

    here = settings()
    os.environ["SAFEPOINT_LOG"] = here.log
    configure(here.log, process=process)
    return here


def _keep_our_log() -> None:
    """Keep Celery from setting up a log of its own, and a worker from writing anything past ours."""
    from celery import signals  # noqa: PLC0415  # as above
    from celery.apps import worker as celery_worker  # noqa: PLC0415

    signals.setup_logging.connect(_log_is_set_up, weak=False)
    signals.celeryd_init.connect(_be_quiet, weak=False)
    setattr(celery_worker, "safe_say", _say_safely)  # noqa: B010  # the types of Celery do not name it


def _warn_of_root() -> None:
    """Say in one line what Celery says in eight."""
    import warnings  # noqa: PLC0415  # as above

    from celery.exceptions import SecurityWarning  # noqa: PLC0415

    warnings.filterwarnings("ignore", category=SecurityWarning)
    if os.geteuid() == 0:
        logging.getLogger("safepoint.worker").warning("runs as root, and so do the steps; an ordinary user is enough")


def _log_is_set_up(**_: Any) -> None:
    """Stand for the set-up that has been done before: a receiver of the signal is all that Celery asks for."""


def _be_quiet(*, instance: Any, **_: Any) -> None:
    """Leave out the banner."""
    instance.quiet = True


def _say_safely(text: str, *_: Any) -> None:
    """Write what Celery says in a signal's handler, where no lock may be taken, as one line of our log's form."""
    line = text.strip()
    if os.environ.get("SAFEPOINT_LOG") == "json":
        line = json.dumps({"level": "info", "logger": "celery.worker", "event": line})
    os.write(2, line.encode() + b"\n")


def worker(
    *,
    lanes: Annotated[str | None, typer.Option(help="Which lanes, separated by commas.", show_default=False)] = None,
    pool: Annotated[Pool | None, typer.Option(help="Processes, or threads.", show_default=False)] = None,
    concurrency: Annotated[int | None, typer.Option(min=1, help="Steps at once.", show_default=False)] = None,
    name: Annotated[str, typer.Option(help="What its node name begins with.")] = "worker",
    log: Log = None,
) -> None:
    """Execute steps, until a signal ends it.

    SIGTERM drains: running steps may end, nothing new is begun.
    """
    use_log(log)
    here = _begin(name)
    served = here.worker.lanes if lanes is None else lane_names(lanes)
    known = ", ".join(sorted(here.lanes))
    if not served and lanes is not None:
        raise ConfigError(None, Problem("command line", "--lanes", f"{lanes!r} names no lane", known))
    for lane in served:
        if lane not in here.lanes:
            raise ConfigError(None, Problem("command line", "--lanes", f"there is no lane {lane!r}", known))
    from ..tasks import worker as room  # noqa: PLC0415  # as above

    _keep_our_log()
    _warn_of_root()
    # What `safepoint worker` was started with means nothing to the flows that it imports.
    room.main(
        here,
        lanes=served,
        pool=pool.value if pool else here.worker.pool,
        concurrency=concurrency or here.worker.concurrency,
        name=name,
    )


def relay(*, log: Log = None) -> None:
    """Publish what is due in the ledger.

    Any number of relays at once is correct.
    """
    use_log(log)
    here = _begin("relay")
    from ..config.resolve import endpoints  # noqa: PLC0415  # as above
    from ..ledger.upgrade import check  # noqa: PLC0415
    from ..tasks.app import make_app  # noqa: PLC0415
    from ..tasks.relay import Relay  # noqa: PLC0415
    from ..tasks.wire import Publisher  # noqa: PLC0415

    ends = endpoints(here)
    check(ends.ledger_url)
    _write_lanes(here, ends.ledger_url)
    app = make_app(here, ends.broker_url)
    running = Relay(
        here, ends.ledger_url, ends.direct_url, Publisher(app, lanes=app.lanes), name=f"relay {os.getpid()}"
    )

    def end(_number: int, _frame: FrameType | None) -> None:
        running.stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    running.run()
    ends.close()


def _write_lanes(here: Settings, ledger_url: str) -> None:
    """See that every configured lane is in the ledger: what is not there, no relay publishes."""
    from ..ledger import lanes  # noqa: PLC0415  # as above
    from ..ledger.connect import connect  # noqa: PLC0415

    with connect(ledger_url, name="safepoint relay lanes") as connection:
        lanes.apply(connection, here.lanes, window=here.relay.window, only_missing=True)


def beat(*, log: Log = None) -> None:
    """Send the chores of the schedule, as the orphan scan.

    None, one or five beats are all correct.
    """
    use_log(log)
    here = _begin("beat")
    from ..config.resolve import endpoints  # noqa: PLC0415  # as above
    from ..tasks.app import make_app  # noqa: PLC0415

    _keep_our_log()
    ends = endpoints(here)
    with closing(ends):
        make_app(here, ends.broker_url).start(["--quiet", "beat", "--loglevel=INFO"])


def flower(
    *,
    host: Annotated[str | None, typer.Option(help="Where it listens.", show_default=False)] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65_535, help="Which port.", show_default=False)] = None,
    log: Log = None,
) -> None:
    """Show workers and tasks in Flower.

    Read-only, and never without a password.
    """
    use_log(log)
    here = _begin("flower")
    from ..config.resolve import endpoints  # noqa: PLC0415  # as above
    from ..tasks.app import make_app  # noqa: PLC0415

    ends = endpoints(here)
    # Through the environment: what is on the command line, every user of the machine can read.
    os.environ["FLOWER_BASIC_AUTH"] = f"{here.flower.user}:{flower_password(here)}"
    options = {
        "address": host or here.flower.host,
        "port": here.flower.port if port is None else port,
        "read-only": True,
        "tasks-columns": "name,uuid,state,kwargs,retries,received,started,runtime,worker",
        "enable-events": True,
    }
    log_ = logging.getLogger("safepoint.flower")
    log_.info("listening on http://%s:%s, user %s", options["address"], options["port"], here.flower.user)
    arguments = [f"--{name}={value}" for name, value in options.items()]
    with closing(ends):
        make_app(here, ends.broker_url).start(["--quiet", "flower", *arguments])


def flower_password(here: Settings) -> str:
    """Return the configured password, or the one that is kept in a file of the home, made when it is first needed."""
    if here.flower.password is not None:
        return here.flower.password.get_secret_value()
    path = password_file(here)
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        if not path.parent.exists():
            path.parent.mkdir(parents=True, mode=0o700)
            (path.parent / ".gitignore").write_text("*\n")
        fresh = secrets.token_urlsafe(18)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(fresh + "\n")
        return fresh


def password_file(here: Settings) -> Path:
    """Return where a generated password is kept."""
    return here.home / "flower.password"
