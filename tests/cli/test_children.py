"""Children: started, started again, ended in order, and nobody else's process touched."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent

import pytest
from safepoint.cli.children import Children, Plan
from safepoint.config.process import is_alive

Eventually = Callable[..., None]
Start = Callable[..., Children]


class Watched:
    """What the children said, and what was said of them."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.lines: list[tuple[str, bytes]] = []
        self.deaths: list[int] = []


@pytest.fixture
def watched() -> Watched:
    return Watched()


@pytest.fixture
def start(watched: Watched) -> Iterator[Start]:
    started: list[Children] = []

    def begin(*plans: Plan) -> Children:
        children = Children(
            plans,
            tell=watched.told.append,
            write=lambda name, line: watched.lines.append((name, line)),
            died=lambda _child, code: watched.deaths.append(code),
        )
        started.append(children)
        children.start()
        return children

    yield begin
    for children in started:
        children.stop(hurry=lambda: True)


def plan(code: str, name: str = "one", *, round: int = 0, patience: float = 10.0) -> Plan:  # noqa: A002  # the plan's own word
    return Plan(name, [sys.executable, "-uc", dedent(code)], dict(os.environ), round=round, patience=patience)


WAIT = "import time\nprint('ready')\ntime.sleep(600)"


def tend_until(children: Children, condition: Callable[[], object], timeout: float = 20.0) -> None:
    ends = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < ends
        children.tend(0.05)


def test_a_childs_lines_are_passed_on_whole(start: Start, watched: Watched) -> None:
    children = start(plan("print('a'); print('b', end='')"))

    tend_until(children, lambda: watched.deaths)

    assert watched.lines[:2] == [("one", b"a"), ("one", b"b")]


def test_a_child_that_died_is_started_again_and_said_so(start: Start, watched: Watched) -> None:
    children = start(plan(WAIT))
    tend_until(children, lambda: watched.lines)
    first = children.children[0].pid
    assert first is not None

    os.kill(first, signal.SIGKILL)
    tend_until(children, lambda: len(watched.lines) == 2)

    assert children.children[0].pid not in (None, first)
    assert watched.deaths == [-signal.SIGKILL]
    assert "ended by SIGKILL; starting it again in 0.5 s" in watched.told[0]
    assert "started again" in watched.told[1]


def test_a_child_that_keeps_dying_waits_longer_each_time(start: Start, watched: Watched) -> None:
    children = start(plan("raise SystemExit(3)"))

    tend_until(children, lambda: len(watched.deaths) == 2)

    assert watched.deaths == [3, 3]
    assert [text for text in watched.told if "exit code 3" in text][1].endswith("in 1 s")


def test_children_end_round_by_round(start: Start, watched: Watched) -> None:
    # Each says when it is asked to end; the later round must not hear of it before the earlier one is gone.
    polite = """
        import signal, time
        def end(*_):
            print("ending", time.monotonic())
            raise SystemExit
        signal.signal(signal.SIGTERM, end)
        print("ready")
        time.sleep(600)
    """
    children = start(plan(polite, "late", round=1), plan(polite, "early", round=0))
    tend_until(children, lambda: len(watched.lines) == 2)

    children.stop(hurry=lambda: False)

    said = [(name, float(line.split()[1])) for name, line in watched.lines if line.startswith(b"ending")]
    assert [name for name, _ in sorted(said, key=lambda one: one[1])] == ["early", "late"]
    assert [child.pid for child in children.children] == [None, None]


DEAF = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('ready')\ntime.sleep(600)"


@pytest.mark.parametrize(("patience", "hurry"), [(0.2, False), (60.0, True)])
def test_a_deaf_child_is_killed_after_its_patience_or_at_once(
    start: Start, watched: Watched, patience: float, hurry: bool
) -> None:
    children = start(plan(DEAF, patience=patience))
    tend_until(children, lambda: watched.lines)
    pid = children.children[0].pid
    assert pid is not None

    children.stop(hurry=lambda: hurry)

    assert not is_alive(pid)
    assert ("is killed" in " ".join(watched.told)) == (not hurry)


def test_a_killed_child_takes_its_own_children_with_it(start: Start, watched: Watched, eventually: Eventually) -> None:
    code = "import subprocess, sys\nprint(subprocess.Popen([sys.executable, '-c', {!r}]).pid)\n" + DEAF
    children = start(plan(code.format("import time; time.sleep(600)"), patience=0.2))
    tend_until(children, lambda: len(watched.lines) == 2)
    grandchild = int(watched.lines[0][1])

    children.stop(hurry=lambda: False)

    def gone() -> None:
        assert not is_alive(grandchild)

    eventually(gone)


def test_ctrl_c_reaches_the_parent_alone(start: Start, watched: Watched) -> None:
    children = start(plan("import os, time\nprint(os.getpgid(0) == os.getpid())\ntime.sleep(600)"))

    tend_until(children, lambda: watched.lines)

    assert watched.lines == [("one", b"True")]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux tells a child that its parent has died")
def test_children_end_when_their_parent_is_killed(tmp_path: Path, eventually: Eventually) -> None:
    code = f"""
        import os, sys
        from safepoint.cli.children import Children, Plan
        plan = Plan("one", [sys.executable, "-c", "import time; time.sleep(600)"], dict(os.environ))
        children = Children([plan], tell=print, write=print)
        children.start()
        open({str(tmp_path / "pid")!r}, "w").write(str(children.children[0].pid))
        while True:
            children.tend()
    """
    parent = subprocess.Popen([sys.executable, "-c", dedent(code)])

    def started() -> None:
        assert (tmp_path / "pid").exists()
        assert (tmp_path / "pid").read_text()

    eventually(started)
    child = int((tmp_path / "pid").read_text())
    parent.kill()
    parent.wait()

    def gone() -> None:
        assert not is_alive(child)

    eventually(gone)
