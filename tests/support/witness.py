"""The outside world as a test sees it: started, scripted, killed, and asked from its own file what it really did."""

from __future__ import annotations

import json
import sys
import urllib.request
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from downstream import LOG
from processes import LocalProcess
from servers import eventually

__all__ = ["Tail", "Witness"]

SUPPORT = Path(__file__).parent
LOCAL = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass
class Tail:
    """What has been added to a file since the last look; a line that is still being written waits for the next one."""

    path: Path
    position: int = 0

    def lines(self) -> list[str]:
        """Return the new lines."""
        with self.path.open("rb") as file:
            file.seek(self.position)
            whole, newline, _ = file.read().rpartition(b"\n")
        self.position += len(whole) + len(newline)
        return whole.decode().splitlines()


@dataclass
class Witness:
    """One outside world, and what is known of it."""

    process: LocalProcess
    url: str
    log: Path
    facts: list[dict[str, Any]] = field(default_factory=list)
    _tail: Tail | None = None

    @classmethod
    def start(cls, folder: Path) -> Witness:
        """Start one whose file is in that folder."""
        command = [sys.executable, "-m", "downstream", str(folder)]
        process = LocalProcess(command, {"PYTHONPATH": str(SUPPORT)}, folder, name="downstream")
        process.start()

        def is_ready() -> None:
            assert b"ready." in process.logs(), process.logs()

        eventually(is_ready)
        return cls(process, process.logs().decode().split()[0], folder / LOG)

    def close(self) -> None:
        """End it."""
        self.process.remove(force=True)

    def script(
        self, reference: str, *, knock: Sequence[str] = (), post: Sequence[str] = (), lookup: Sequence[str] = ()
    ) -> None:
        """Say how the next requests about a reference are treated, in order; after that all goes well."""
        body = json.dumps({"knock": list(knock), "post": list(post), "lookup": list(lookup)}).encode()
        LOCAL.open(urllib.request.Request(f"{self.url}/script/{quote(reference)}", body, method="PUT")).close()

    def in_flight(self) -> int:
        """Tell how many requests are under way."""
        with LOCAL.open(f"{self.url}/in-flight") as answer:
            return int(json.load(answer)["in_flight"])

    def read(self) -> list[dict[str, Any]]:
        """Return what is new in the file, and keep it."""
        if self._tail is None:
            self._tail = Tail(self.log)
        new = [json.loads(line) for line in self._tail.lines()]
        self.facts += new
        return new

    def of(self, reference: str, *what: str) -> list[dict[str, Any]]:
        """Return all that is known about a reference, or the facts of these kinds."""
        self.read()
        return [fact for fact in self.facts if fact["reference"] == reference and (not what or fact["what"] in what)]

    def numbers(self, reference: str) -> list[int]:
        """Return the numbers of what was really done for a reference: more than one is a second execution."""
        return [fact["number"] for fact in self.of(reference, "done")]

    def assert_nothing_twice(self) -> None:
        """Check that nothing at all was done twice, under one key or under several, and that no request changed."""
        self.read()
        done = [fact for fact in self.facts if fact["what"] == "done"]
        for what in ("reference", "key"):
            twice = [name for name, count in Counter(fact[what] for fact in done).items() if count > 1]
            assert not twice, (
                what,
                [fact for fact in self.facts if fact["reference"] in twice or fact.get("key") in twice],
            )
        assert not [fact for fact in self.facts if fact["what"] == "changed"]
