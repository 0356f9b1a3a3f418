"""`up` and the processes that it starts, for real: everything comes up, a killed child comes back, nothing is left."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from safepoint.cli.up import plans, safe_url
from safepoint.config.process import free_port
from safepoint.config.resolve import Endpoints
from safepoint.config.settings import load
from safepoint.ledger.errors import SafepointError
from safepoint.ledger.fleet import list_nodes
from safepoint.ledger.snapshot import snapshot

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

Eventually = Callable[..., None]
SUPPORT = Path(__file__).parents[1] / "support"


@dataclass
class Up:
    """A running `safepoint up`, with a home of its own."""

    home: Path
    env: dict[str, str]
    process: subprocess.Popen[bytes]
    log: Path
    flower: int
    code: int | None = field(default=None)

    def says(self) -> str:
        """What it has written so far."""
        return self.log.read_text()

    def safepoint(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run another verb on the same home."""
        command = [sys.executable, "-m", "safepoint", *arguments]
        return subprocess.run(command, env=self.env, capture_output=True, text=True, check=False)

    def nodes(self) -> list[dict[str, Any]]:
        """The workers as the ledger knows them; none before it is there."""
        try:
            secrets = json.loads((self.home / "embedded.json").read_text())
            place = f"safepoint:{secrets['postgres_password']}@127.0.0.1:{secrets['postgres_port']}"
            with snapshot(f"postgresql://{place}/safepoint", name="test") as connection:
                return list_nodes(connection)
        except (OSError, SafepointError):
            return []

    def end(self, number: signal.Signals) -> float:
        """End it by a signal, and return how long that took."""
        begun = time.monotonic()
        self.process.send_signal(number)
        self.code = self.process.wait(60)
        return time.monotonic() - begun


def mentioning(text: str) -> list[str]:
    """The command lines of this machine's processes that hold a text in their command or environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes() + (folder / "environ").read_bytes()
        except OSError:
            continue
        if text.encode() in command and int(folder.name) != os.getpid():
            found.append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode())
    return found


@pytest.mark.parametrize(
    ("file", "served"),
    [
        ("", "online,recovery"),
        ("[lanes.gpu]\nrate = 5", "online,recovery,gpu"),
        ('[lanes.gpu]\nrate = 5\n[worker]\nlanes = ["online"]', "online"),
    ],
    ids=["as shipped", "a lane of one's own", "said"],
)
def test_its_workers_take_every_lane_unless_somebody_has_said_which(tmp_path: Path, file: str, served: str) -> None:
    (tmp_path / "safepoint.toml").write_text(file)
    here, ends = load(tmp_path / "safepoint.toml", {}), Endpoints("postgresql://h/d", "postgresql://h/d", "redis://h")

    planned = {
        plan.name: list(plan.command) for plan in plans(here, ends, workers=2, concurrency=None, with_flower=False)
    }

    taken = {name: words[words.index("--lanes") + 1] for name, words in planned.items() if "--lanes" in words}
    assert taken == {"control": "control", "worker-1": served, "worker-2": served}


@pytest.fixture
def start() -> Iterator[Callable[..., Up]]:
    folder = Path(tempfile.mkdtemp(prefix="safepoint-up-"))
    folder.chmod(0o711)
    begun: list[Up] = []

    def begin(*options: str, flows: str = "replayable") -> Up:
        flower = free_port()
        clean = {name: value for name, value in os.environ.items() if not name.startswith("SAFEPOINT_")}
        paths = [str(SUPPORT), os.environ.get("PYTHONPATH", "")]
        env = {**clean, "SAFEPOINT_HOME": str(folder / "home"), "SAFEPOINT_FLOWS": flows}
        env |= {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "SAFEPOINT_FLOWER__PORT": str(flower)}
        log = folder / "log"
        with log.open("wb") as file:
            command = [sys.executable, "-m", "safepoint", "up", *options]
            process = subprocess.Popen(command, env=env, stdout=file, stderr=file, process_group=0)
        begun.append(Up(folder / "home", env, process, log, flower))
        return begun[-1]

    yield begin
    for up in begun:
        if up.process.poll() is None:
            up.end(signal.SIGTERM)
    shutil.rmtree(folder, ignore_errors=True)


def wait_for_workers(up: Up, number: int, eventually: Eventually) -> None:
    def live() -> None:
        assert up.process.poll() is None, up.says()
        assert sum(node["state"] == "live" for node in up.nodes()) >= number

    eventually(live, timeout=90, every=0.1)


def test_a_run_goes_through_a_killed_worker_comes_back_and_all_ends(
    start: Callable[..., Up], eventually: Eventually
) -> None:
    up = start("--workers", "1", "--concurrency", "1")
    wait_for_workers(up, 2, eventually)

    ran = up.safepoint("enqueue", "replayed", "--input", '{"alert": 1}', "--wait", "60")
    doctor = up.safepoint("doctor", "--json")
    (worker,) = (node for node in up.nodes() if "online" in node["lanes"])
    os.kill(worker["pid"], signal.SIGKILL)

    def back() -> None:
        assert {node["state"] for node in up.nodes() if "online" in node["lanes"] and node["id"] != worker["id"]} == {
            "live"
        }

    eventually(back, timeout=60, every=0.1)
    took = up.end(signal.SIGINT)

    assert (ran.returncode, json.loads(ran.stdout)) == (0, "seen 11"), ran.stderr
    assert (doctor.returncode, json.loads(doctor.stdout)["ok"]) == (0, True), doctor.stdout
    assert "worker-1 was ended by SIGKILL; starting it again in 0.5 s" in up.says()
    assert up.code == 0, up.says()
    assert took < 30
    assert mentioning(str(up.home)) == []


def test_it_says_where_everything_listens_and_no_password(start: Callable[..., Up], eventually: Eventually) -> None:
    up = start("--workers", "1")
    wait_for_workers(up, 2, eventually)
    password = (up.home / "flower.password").read_text().strip()
    address = f"http://127.0.0.1:{up.flower}/api/tasks"

    def open_to(*headers: tuple[str, str]) -> int:
        try:
            with urllib.request.urlopen(urllib.request.Request(address, headers=dict(headers)), timeout=5) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as refused:
            with refused:
                return refused.code
        except OSError:
            return 0

    def flower_answers() -> None:
        assert open_to() == 401

    eventually(flower_answers, timeout=60, every=0.1)
    token = base64.b64encode(f"safepoint:{password}".encode()).decode()

    assert open_to(("Authorization", f"Basic {token}")) == 200
    assert (up.home / "flower.password").stat().st_mode & 0o777 == 0o600
    said = up.says()
    assert re.search(r"ledger +postgresql://safepoint:\*\*\*@127\.0\.0\.1:\d+/safepoint", said)
    assert re.search(r"broker +redis://\*\*\*@127\.0\.0\.1:\d+/0", said)
    assert f"http://127.0.0.1:{up.flower}" in said
    secrets = json.loads((up.home / "embedded.json").read_text())
    assert [name for name in ("postgres_password", "valkey_password") if secrets[name] in said] == []
    assert password not in said
    # Neither does `ps`: whoever is on the machine may read command lines.
    assert [line for line in mentioning(str(up.home)) if password in line] == []
    up.end(signal.SIGTERM)
    assert up.code == 0


def test_every_line_is_json_when_that_is_asked_for(start: Callable[..., Up], eventually: Eventually) -> None:
    up = start("--workers", "1", "--log", "json")
    wait_for_workers(up, 2, eventually)
    up.end(signal.SIGTERM)

    lines = [json.loads(line) for line in up.says().splitlines()]

    assert {"up", "worker-1", "control", "relay"} <= {line["process"] for line in lines if "process" in line}


def test_a_flow_module_that_is_not_there_ends_all_and_is_named(start: Callable[..., Up]) -> None:
    up = start("--no-flower", flows="no_such_module")

    assert up.process.wait(120) == 2
    assert "no_such_module cannot be imported" in up.says()
    assert "cannot work as it is configured" in up.says()
    assert mentioning(str(up.home)) == []


def test_urls_are_shown_without_passwords() -> None:
    assert safe_url("postgresql://me:secret@db:5432/x?a=b") == "postgresql://me:***@db:5432/x?a=b"
    assert safe_url("redis://:secret@db/0") == "redis://***@db/0"
    assert safe_url("redis://db/0") == "redis://db/0"
