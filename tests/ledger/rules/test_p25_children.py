"""P25: a node reports its dead child at once, with how it has died; P22: unless it is draining."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from ledger_fixtures import Crowd
from ledger_verbs import Verbs, ask, key
from safepoint.ledger import nodes
from safepoint.tasks.board import Board, process_start
from safepoint.tasks.node import Heartbeat
from workshop import settings_of

A = key("a#1")


@pytest.fixture
def node(crowd: Crowd, crowded_ledger_url: str, tmp_path: Path) -> Iterator[Heartbeat]:
    """A node that beats so seldom that nothing is noticed by its beats, and drains without an end."""
    settings = settings_of(tmp_path, worker={"lease": 300, "beat": 100, "drain": 300})
    told = nodes.Node("parent", "host", 1, ("online", "recovery"), ("f@1",), concurrency=2)
    node = Heartbeat(settings, crowded_ledger_url, told, Board(slots=2, lanes=("online",)))
    node.start()
    yield node
    node.stop()


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    child = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE)
    yield child
    child.kill()
    child.communicate()


def executed_by(child: subprocess.Popen[bytes], node: Heartbeat, verbs: Verbs) -> UUID:
    """Let a child have claimed a step, and its parent know of it."""
    token, started, run = uuid4(), process_start(child.pid), verbs.begun(ask("a#1"))
    node.board._write(0, token.bytes, child.pid, started)  # what a pool child does itself
    verbs.claimed(run, A, node="parent", token=token, pid=child.pid, pid_start=started)
    return run


@pytest.mark.parametrize("pidfds", [True, False])
def test_p25_a_dead_child_is_reported_with_how_it_died(
    crowd: Crowd, node: Heartbeat, child: subprocess.Popen[bytes], eventually: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch, *, pidfds: bool,
) -> None:  # fmt: skip
    verbs = crowd()
    if not pidfds:
        monkeypatch.delattr(os, "pidfd_open")
    run = executed_by(child, node, verbs)
    node.board._ring()
    if pidfds:
        eventually(lambda: _assert_watched(node))
    child.kill()
    if not pidfds:
        assert node.deaths.see(child.pid, wait=True)  # as the pool does before it waits

    eventually(lambda: _assert_ready(verbs, run))

    told = verbs.value("SELECT data FROM safepoint.events WHERE type = 'step.lost'")
    assert (told["cause"], told["evidence"]["signal"], told["evidence"]["pid"]) == ("child", "SIGKILL", child.pid)
    assert verbs.step(run, A)["deaths"] == 1


def test_p22_a_child_that_ends_while_its_node_drains_is_no_death(
    crowd: Crowd, node: Heartbeat, child: subprocess.Popen[bytes], eventually: Callable[..., None]
) -> None:
    verbs = crowd()
    run = executed_by(child, node, verbs)
    node.board._ring()
    eventually(lambda: _assert_watched(node))
    node.drain()
    child.terminate()  # as Celery does when it is told to end at once

    eventually(lambda: _assert_ready(verbs, run))

    row = verbs.step(run, A)
    assert (row["deaths"], row["recoveries"], row["lane"]) == (0, 0, "online")


def _assert_watched(node: Heartbeat) -> None:
    assert node._watch.fds  # a child that is dead before it is watched is another case


def _assert_ready(verbs: Verbs, run: UUID) -> None:
    assert verbs.step(run, A)["status"] == "ready"
