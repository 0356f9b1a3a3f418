"""Where a step's time goes: flame graphs of our workers by py-spy, and what PostgreSQL executes by pg_stat_statements.

Beside `RESULTS.md`, for the goals that are missed. A profiler slows what it watches down: shares count, seconds do not.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any, LiteralString

import psycopg
from comparison import table
from contenders import CONTENDERS
from own_servers import Servers, serving
from starting import Started

__all__ = ["main"]

HERE = Path(__file__).resolve().parent
WATCHED = ("ours-redis", "ours-rabbitmq", "ours-rabbitmq-threads", "inline-redis", "inline-rabbitmq-threads")
STEPS = 10  # of a run
TOP = 14  # statements
RATE = 100  # samples a second
_STATEMENTS: LiteralString = """
SELECT toplevel, calls, total_exec_time, regexp_replace(query, '\\s+', ' ', 'g') FROM pg_stat_statements
 WHERE query NOT ILIKE '%%pg_stat_statements%%' ORDER BY total_exec_time DESC LIMIT %s
"""


def main(*, quick: bool) -> None:
    """Write a flame graph for each of our forms, and a page with the statements of each."""
    runs = 100 if quick else 400
    folder = Path(tempfile.mkdtemp(prefix="safepoint-profiles-")) if quick else HERE / "profiles"
    folder.mkdir(exist_ok=True)
    lines = [
        "# Profiles", "",
        f"Made by `python bench profiles`: {runs} runs of {STEPS} steps, first under py-spy ({RATE} samples a second of"
        " the processor's time, all processes of the worker), then under pg_stat_statements with all that functions"
        " execute inside. Shares count, seconds do not.", "",
    ]  # fmt: skip
    with serving() as servers:
        for name in WATCHED:
            contender = CONTENDERS[name]
            if "RabbitMQ" in contender.servers and servers.amqp_url is None:
                print(f"{contender.name}: left out, there is no RabbitMQ", file=sys.stderr)
                continue
            with contender.run(servers, contender) as started:
                started.client.ask("many", runs=max(16, runs // 5), steps=STEPS)
                picture = f"{name}.svg"
                drawn = _flames(started, folder / picture, runs=runs)
                statements = _statements(servers, started, runs=runs)
            lines += [
                f"## {contender.name}",
                "",
                f"[Flame graph of the worker]({picture})" if drawn else drawn_not(),
                "",
            ]
            lines += [*table(["statement", "times a step", "µs a step"], statements), ""]
    page = folder / "README.md"
    page.write_text("\n".join(lines).rstrip() + "\n")
    print(page.read_text())


def drawn_not() -> str:
    """Say why there is no picture."""
    return "py-spy is not installed: no flame graph."


def _flames(started: Started, picture: Path, *, runs: int) -> bool:
    """Draw what the worker's processes do while it executes runs."""
    program = shutil.which("py-spy") or shutil.which("py-spy", path=sysconfig.get_path("scripts"))
    if program is None:
        return False
    command = [program, "record", "--subprocesses", "--rate", str(RATE), "--format", "flamegraph"]
    recording = subprocess.Popen(
        [*command, "--pid", str(started.roots["worker"]), "--output", str(picture), "--duration", "3600"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        started.client.ask("many", runs=runs, steps=STEPS)
    finally:
        recording.send_signal(2)  # Ctrl-C: it writes the picture and ends
        recording.wait(timeout=60)
    # Paths of a machine are of no use to a reader.
    text = re.sub(r"/[\w./+-]*?/(site-packages|python3\.\d+|safepoint|bench)/", r"\1/", picture.read_text())
    text = re.sub(r">[^<]*?py-spy record[^<]*<", ">py-spy record<", text)
    picture.write_text(re.sub(r"process \d+(:&quot;[^<]*)?", "process", text))
    return True


def _statements(servers: Servers, started: Started, *, runs: int) -> list[list[Any]]:
    """Count what the server executes for so many runs, functions' own statements included."""
    with psycopg.connect(servers.admin_url, autocommit=True) as admin:
        _track(admin, "all")
        admin.execute("SELECT pg_stat_statements_reset()")
        started.client.ask("many", runs=runs, steps=STEPS)
        _track(admin, "none")
        steps = runs * STEPS
        rows = admin.execute(_STATEMENTS, (TOP,)).fetchall()
    return [
        [("" if top else "· ") + _short(query), f"{calls / steps:.2f}", f"{1000 * spent / steps:,.0f}"]
        for top, calls, spent, query in rows
    ]


def _track(admin: psycopg.Connection[Any], what: str) -> None:
    admin.execute(f"ALTER SYSTEM SET pg_stat_statements.track = '{what}'".encode())
    admin.execute("SELECT pg_reload_conf()")


def _short(query: str) -> str:
    """Return the beginning of a statement, as a cell of a table."""
    text = query.replace("|", "\\|")
    return f"`{text[:90]}{'…' if len(text) > 90 else ''}`"
