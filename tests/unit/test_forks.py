"""A child that is forked while a thread of ours works begins with none of the locks that the thread holds."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import IO

import pytest
from safepoint.tasks.forks import at_work

FORKS = 50


@pytest.fixture
def stream() -> Iterator[IO[str]]:
    """A stream such as a log has: its lock is nobody's to make anew after a fork."""
    with open(os.devnull, "w", encoding="utf-8") as stream:  # noqa: PTH123  # a plain buffered stream
        yield stream


def writing(stream: IO[str], *, until: threading.Event, gated: bool) -> None:
    while not until.is_set():
        if gated:
            with at_work():
                stream.write("x" * 200 + "\n")
                stream.flush()
        else:
            stream.write("x" * 200 + "\n")
            stream.flush()


def hung(stream: IO[str]) -> int:
    """Fork, let each child write one line, and count those that cannot."""
    stuck = 0
    for _ in range(FORKS):
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            stream.write("child\n")
            stream.flush()
            os._exit(0)  # which closes the pipe
        os.close(writer)
        stuck += not _ended(pid, reader)
        os.close(reader)
        if stuck:
            break
    return stuck


def _ended(pid: int, reader: int) -> bool:
    import select  # for this alone

    ended = bool(select.select([reader], [], [], 10.0)[0])
    if not ended:
        os.kill(pid, 9)
    os.waitpid(pid, 0)
    return ended


def test_a_child_forked_beside_work_can_write(stream: IO[str]) -> None:
    done = threading.Event()
    threads = [threading.Thread(target=writing, args=(stream,), kwargs={"until": done, "gated": True}) for _ in "ab"]
    for thread in threads:
        thread.start()
    try:
        assert hung(stream) == 0
    finally:
        done.set()
        for thread in threads:
            thread.join()


def test_who_waits_to_work_while_a_fork_happens_works_after_it() -> None:
    with at_work():
        pass
    pid = os.fork()
    if pid == 0:
        with at_work():
            os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    with at_work():
        pass
