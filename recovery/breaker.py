"""The circuit breaker of a dependency: a pure state machine. Times are seconds, handed in; so is the jitter.

closed → open (enough of enough calls have failed) → half_open (a few probes) → closed, or open again for longer.
A weakness: the window slides by a tenth of itself, so a call is looked at for up to a tenth longer or shorter.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum

from ..config.breakers import BreakerPolicy

__all__ = ["Admission", "Breaker", "Bucket", "Outcome", "State", "Tally", "admit", "judge", "probed", "reset", "trip"]

BUCKETS = 10  # of a window
JITTER = 0.25  # part of a pause that chance takes away: breakers of many ledgers must not probe in step


class State(StrEnum):
    """What a breaker lets through."""

    CLOSED = "closed"  # everything; → open by its calls, or by a person
    OPEN = "open"  # nothing; → half_open when its pause is over, closed by a person
    HALF_OPEN = "half_open"  # probes; → closed when enough have succeeded, open when one has failed


class Outcome(StrEnum):
    """What one call tells of the dependency; a crash, or an error of the caller's own, tells nothing (P39)."""

    OK = "ok"
    FAILED = "failed"
    THROTTLED = "throttled"  # it answered, and wants to be left alone


class Admission(StrEnum):
    """What a claim of a step that uses the dependency gets."""

    GO = "go"
    PROBE = "probe"
    WAIT = "wait"


@dataclass(frozen=True, slots=True)
class Tally:
    """Outcomes, summed; `leave_for` is the longest that the other side has asked to be left alone, from now."""

    ok: int = 0
    failed: int = 0
    throttled: int = 0
    leave_for: float = 0.0

    @property
    def bad(self) -> int:
        """How many speak against the dependency."""
        return self.failed + self.throttled

    @property
    def volume(self) -> int:
        """How many there are."""
        return self.ok + self.failed + self.throttled

    def __add__(self, other: Tally) -> Tally:
        """Sum two tallies."""
        return Tally(
            self.ok + other.ok,
            self.failed + other.failed,
            self.throttled + other.throttled,
            max(self.leave_for, other.leave_for),
        )


@dataclass(frozen=True, slots=True)
class Bucket:
    """The outcomes of a tenth of the window, from `start` on."""

    start: float
    tally: Tally


@dataclass(frozen=True, slots=True)
class Breaker:
    """A breaker as it stands."""

    state: State = State.CLOSED
    opened_at: float | None = None
    probe_at: float | None = None  # of an open one: from when on probes go; infinite until a person resets it
    pause: float = 0.0  # of an open one: how long it was to stay so; also how long a probe may take
    opens: int = 0  # openings since it was last closed for long
    closed_at: float = -math.inf
    good: int = 0  # probes that have succeeded since it is half open
    buckets: tuple[Bucket, ...] = ()
    streak: int = 0  # calls that have failed since one has not
    why: str = ""

    def seen(self) -> Tally:
        """Sum what is in the window."""
        return sum((bucket.tally for bucket in self.buckets), Tally())


def admit(breaker: Breaker, *, policy: BreakerPolicy, now: float, live: int) -> Admission:
    """Decide about one claim while `live` probes are on their way."""
    match breaker.state:
        case State.CLOSED:
            return Admission.GO
        case State.OPEN if breaker.probe_at is None or now < breaker.probe_at:
            return Admission.WAIT
        case _:
            good = breaker.good if breaker.state is State.HALF_OPEN else 0
            return Admission.PROBE if live < policy.probes - good else Admission.WAIT


def judge(breaker: Breaker, tally: Tally, *, policy: BreakerPolicy, now: float, jitter: float) -> Breaker:
    """Count outcomes of ordinary calls. Those that come when it is not closed belong to calls that began before."""
    if breaker.state is not State.CLOSED or not tally.volume:
        return breaker
    # Of a tally that has both, nobody knows which came last.
    streak = 0 if tally.ok else breaker.streak + tally.bad
    counted = replace(breaker, buckets=_counted(breaker.buckets, tally, window=policy.window, now=now), streak=streak)
    seen = counted.seen()
    if streak >= policy.in_a_row:  # what was well for a whole window until now need not fail for half of one
        why = f"{streak} calls in a row failed"
        return _opened(counted, policy=policy, now=now, jitter=jitter, leave_for=tally.leave_for, why=why)
    if seen.volume < policy.min_volume or seen.bad < policy.ratio * seen.volume:
        return counted
    throttled = f", {seen.throttled} of them throttled" if seen.throttled else ""
    why = f"{seen.bad} of {seen.volume} calls failed within {policy.window:g} s{throttled}"
    return _opened(counted, policy=policy, now=now, jitter=jitter, leave_for=tally.leave_for, why=why)


def probed(
    breaker: Breaker, outcome: Outcome, *, policy: BreakerPolicy, now: float, jitter: float, leave_for: float = 0.0
) -> Breaker:
    """Take the outcome of one probe."""
    if breaker.state is not State.HALF_OPEN:
        return breaker
    if outcome is not Outcome.OK:
        what = "was throttled" if outcome is Outcome.THROTTLED else "failed"
        return _opened(breaker, policy=policy, now=now, jitter=jitter, leave_for=leave_for, why=f"a probe {what}")
    good = breaker.good + 1
    if good < policy.probes:
        return replace(breaker, good=good)
    return Breaker(opens=breaker.opens, closed_at=now, why=f"{good} probes succeeded")


def trip(breaker: Breaker, *, now: float, until: float, why: str) -> Breaker:
    """Open it by hand: nothing goes through before `until`, which may be infinite."""
    return Breaker(
        State.OPEN,
        opened_at=now,
        probe_at=until,
        pause=until - now,
        opens=breaker.opens,
        closed_at=breaker.closed_at,
        why=why,
    )


def reset(*, now: float, why: str) -> Breaker:
    """Close it by hand; what was counted is forgotten."""
    return Breaker(closed_at=now, why=why)


def _opened(
    breaker: Breaker, *, policy: BreakerPolicy, now: float, jitter: float, leave_for: float, why: str
) -> Breaker:
    # One that has been closed for as long as it can stay open has recovered; a sooner failure goes on backing off.
    is_again = breaker.state is State.HALF_OPEN or now - breaker.closed_at < policy.max_open
    opens = breaker.opens + 1 if is_again else 1
    # Not 2 ** (opens - 1): a dependency may be away for days.
    doubled = policy.open_for * 2.0 ** min(opens - 1, 30)
    pause = min(policy.max_open, doubled) * (1 - JITTER * jitter)
    pause = max(pause, min(leave_for, policy.max_open))  # it was asked to wait, and is not asked sooner
    return Breaker(
        State.OPEN,
        opened_at=now,
        probe_at=now + pause,
        pause=pause,
        opens=opens,
        closed_at=breaker.closed_at,
        why=why,
    )


def _counted(buckets: tuple[Bucket, ...], tally: Tally, *, window: float, now: float) -> tuple[Bucket, ...]:
    """Add to the newest bucket, or begin one; what the window has left behind, or a clock set back has put before
    it, is dropped.
    """
    width = window / BUCKETS
    start = math.floor(now / width) * width
    kept = tuple(bucket for bucket in buckets if now - window < bucket.start < start)
    newest = sum((bucket.tally for bucket in buckets if bucket.start == start), tally)
    return (*kept, Bucket(start, replace(newest, leave_for=0.0)))
