"""How a child has died is known to its parent, whoever waits for it."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest
from safepoint.tasks.death import Death, Deaths, look, name_of

MIB = 1 << 20


def child(code: str, *, stdin: int = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-S", "-c", f"import os, signal\n{code}"], stdin=stdin)


def ended(code: str) -> Death:
    """Let a child run and look at it when it is dead."""
    process = child(code)
    found = look(process.pid, wait=True)
    process.wait()
    assert found is not None
    return found


@pytest.mark.parametrize("code", [0, 3])
def test_an_exit_is_known_by_its_code(code: int) -> None:
    found = ended(f"os._exit({code})")

    assert (found.exit_code, found.signal) == (code, None)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_kill_is_known_by_its_signal(number: signal.Signals) -> None:
    found = ended(f"os.kill(os.getpid(), {number})")

    assert (found.exit_code, found.signal) == (None, number)


PEAKS = """
import os
from safepoint.tasks.death import look

for size in (0, 64):
    pid = os.fork()
    if pid == 0:
        held = b"x" * (size << 20)
        os._exit(0)
    print(look(pid, wait=True).peak)
"""


def test_the_peak_of_memory_is_the_dead_childs_own() -> None:
    # Without exec, as in a pool: what a process was before it became another program counts as its own.
    told = subprocess.run([sys.executable, "-c", PEAKS], capture_output=True, text=True, check=True).stdout.split()

    assert 60 * MIB < int(told[1]) - int(told[0]) < 80 * MIB


def test_a_child_that_was_looked_at_can_be_waited_for() -> None:
    process = child("os._exit(4)")
    look(process.pid, wait=True)

    assert process.wait() == 4
    with pytest.raises(ChildProcessError):
        look(process.pid)


def test_a_live_child_has_not_died() -> None:
    process = child("input()", stdin=subprocess.PIPE)
    deaths = Deaths()

    assert look(process.pid) is None
    assert not deaths.see(process.pid)

    process.communicate(b"\n")
    assert deaths.evidence(process.pid) == {"dead": True, "pid": process.pid}  # nobody has looked in time


def test_a_death_is_told_once_although_it_was_waited_for() -> None:
    process, deaths = child("os.kill(os.getpid(), signal.SIGKILL)"), Deaths()
    deaths.see(process.pid, wait=True)
    process.wait()

    assert deaths.evidence(process.pid)["signal"] == "SIGKILL"
    assert "signal" not in deaths.evidence(process.pid)


POOL = """
import os, signal
from billiard import Process
from safepoint.tasks.death import Deaths

deaths = Deaths()
deaths.attend()
children = [Process(target=os._exit, args=(3,)) for _ in range(20)]
for one in children:
    one.start()
left = list(children)
while left:  # as the pool does
    left = [one for one in left if one.exitcode is None]
print([one.exitcode for one in children] == [3] * 20, [deaths.take(one.pid).exit_code for one in children] == [3] * 20)
killed = Process(target=signal.pause)
killed.start()
os.kill(killed.pid, signal.SIGKILL)
killed.join()
print(killed.exitcode, deaths.take(killed.pid).signal)
"""


def test_celerys_pool_waits_for_no_child_unseen() -> None:
    done = subprocess.run([sys.executable, "-c", POOL], capture_output=True, text=True, check=True)

    assert done.stdout.splitlines() == ["True True", "-9 9"]


def test_a_signal_without_a_name_has_its_number() -> None:
    assert (name_of(9), name_of(4000)) == ("SIGKILL", "signal 4000")


def test_what_was_seen_whole_is_not_replaced_by_what_was_seen_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody waits for the child between the two looks that a look is made of."""
    deaths, whole = Deaths(), Death(signal=9, peak=5_000_000)
    seen = iter([whole, Death(signal=9)])
    monkeypatch.setattr("safepoint.tasks.death.look", lambda _pid, **_: next(seen))
    deaths.see(4_000_000)

    assert deaths.take(4_000_000) == whole
