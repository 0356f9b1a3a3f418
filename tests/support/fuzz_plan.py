"""What a seed of the effect fuzzer stands for: a run, how the outside world treats it, and which faults befall it.

Pure: the same seed is the same plan, for ever on one Python. Faults hang on what the run itself does (its n-th request,
a lookup, a step that begins), so that they meet it wherever it is; `PATIENCE` and the like bound the outside world's
delays and the stops, whose sum stays below `AUTHORITATIVE_AFTER`: beyond it a side that can only be asked may do twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from downstream import KINDS

__all__ = ["AUTHORITATIVE_AFTER", "LONGEST_DELAY", "LONGEST_STOP", "PATIENCE", "Fault", "Plan", "Script", "plan"]

PATIENCE = 0.6  # seconds that a client waits for an answer
LONGEST_STOP = 3.5  # seconds; longer than the lease of the fuzzer's fleet and than the timeout of its effects
LONGEST_DELAY = 1.5
AUTHORITATIVE_AFTER = 6.0
assert LONGEST_STOP + LONGEST_DELAY < AUTHORITATIVE_AFTER

# How often each is taken, of a hundred.
POSTS = {
    "ok": 28, "late": 12, "hang": 8, "delayed": 14, "500-before": 7, "500-after": 9, "reset-before": 8,
    "reset-after": 10, "refuse": 4,
}  # fmt: skip
LOOKUPS = {"ok": 50, "slow": 20, "500": 12, "reset": 10, "nonsense": 8}
FAULTS = {"kill child": 34, "kill worker": 14, "stop child": 18, "stop worker": 16, "cancel": 18}
STEPS = ("compose#1", "file#1")
MUTE = 40  # lookups that fail one after the other: more than an effect asks


@dataclass(frozen=True)
class Script:
    """How the outside world treats the requests about one effect, in order."""

    post: tuple[str, ...]
    lookup: tuple[str, ...]
    knock: tuple[str, ...] = ()


@dataclass(frozen=True)
class Fault:
    """Something that befalls whoever does `on` for the run, so many seconds after it."""

    what: str
    on: str
    delay: float
    length: float = 0.0

    def __str__(self) -> str:
        length = f" for {self.length:.2f} s" if self.length else ""
        return f"{self.what}{length}, {self.delay:.2f} s after {self.on}"


@dataclass(frozen=True)
class Plan:
    """All that a seed stands for."""

    seed: int
    kinds: tuple[str, ...]
    at_once: bool
    scripts: tuple[Script, ...]
    faults: tuple[Fault, ...]

    def __str__(self) -> str:
        lines = [f"seed {self.seed}: {', '.join(self.kinds)}{' at once' if self.at_once else ''}"]
        for number, script in enumerate(self.scripts):
            lookup = f"{script.lookup[0]} × {MUTE}" if len(script.lookup) == MUTE else str(script.lookup)
            lines.append(f"  effect {number}: knock {script.knock}, post {script.post}, lookup {lookup}")
        return "\n".join([*lines, *[f"  {fault}" for fault in self.faults]])


def plan(seed: int) -> Plan:
    """Work out what a seed stands for."""
    random = Random(seed)
    kinds = tuple(random.choices(KINDS, weights=(35, 40, 25), k=random.choice((1, 1, 2, 3))))
    scripts = [_script(random) for _ in kinds]
    faults = []
    for _ in range(random.choice((0, 1, 1, 2, 2, 3))):
        fault = _fault(random, len(kinds))
        faults.append(fault)
        _lead_to(random, scripts, fault)
    return Plan(seed, kinds, len(kinds) > 1 and random.random() < 0.4, tuple(scripts), tuple(faults))


def _script(random: Random) -> Script:
    posts = [_post(random) for _ in range(random.choice((0, 1, 1, 2, 3)))]
    if random.random() < 0.05:
        return Script(tuple(posts), ("500",) * MUTE)
    knocks = tuple(random.choices(("ok", "down"), weights=(88, 12), k=4))
    lookups = [_timed(random, _taken(random, LOOKUPS), {"slow": 0.8}) for _ in range(random.choice((0, 1, 2, 3)))]
    return Script(tuple(posts), tuple(lookups), knocks)


def _post(random: Random) -> str:
    longest = {"late": 2 * PATIENCE, "hang": 2 * PATIENCE, "delayed": LONGEST_DELAY}
    return _timed(random, _taken(random, POSTS), longest)


def _fault(random: Random, effects: int) -> Fault:
    what = _taken(random, FAULTS)
    effect = random.randrange(effects)
    requests = [
        *[f"{on} {effect} 1" for on in ("post", "post", "post", "knock", "knock", "lookup")],
        f"post {effect} 2",
    ]
    on = random.choice([*requests, f"knock {effect} 2", f"begin {random.choice(STEPS)}"])
    # A step that is no request is over in no time.
    delay = random.choice((0.0, 0.0, random.uniform(0, 0.05), random.uniform(0, PATIENCE if on[0] != "b" else 0.05)))
    length = random.choice((random.uniform(0.1, 1.0), random.uniform(2.5, LONGEST_STOP))) if "stop" in what else 0.0
    return Fault(what, on, round(delay, 3), round(length, 3))


def _lead_to(random: Random, scripts: list[Script], fault: Fault) -> None:
    """Have what a fault hangs on happen at all, and a request mostly under way when the fault comes."""
    on, place, number = (*fault.on.split(), "")[:3]
    if on == "begin":
        return
    script, under_way = scripts[int(place)], f"{random.choice(('late', 'late', 'hang'))}:{2 * PATIENCE:g}"
    posts = [*script.post, "ok", "ok"][: max(2, len(script.post))]
    if on == "lookup" or number == "2":
        posts[0] = random.choice(("late:1.2", "hang:1.2", "reset-before", "reset-after", "500-before", "500-after"))
    if on == "post" and random.random() < 0.7:
        posts[int(number) - 1] = under_way
    knocks = [*script.knock, "ok", "ok"][: max(2, len(script.knock))]
    if on == "knock":
        knocks[int(number) - 1] = f"pause:{PATIENCE:g}"
    scripts[int(place)] = Script(tuple(posts), script.lookup, tuple(knocks))


def _taken(random: Random, weights: dict[str, int]) -> str:
    return random.choices(list(weights), weights=list(weights.values()))[0]


def _timed(random: Random, name: str, longest: dict[str, float]) -> str:
    if name not in longest:
        return name
    # What is delayed is done when its client has gone; the rest may be either.
    return f"{name}:{random.uniform(1.3 * PATIENCE if name == 'delayed' else 0.1, longest[name]):.2f}"
