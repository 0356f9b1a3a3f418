"""Everything that a comparison has measured, and its file: tables and picture are made of this alone."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from rounds import Round

__all__ = ["Compared"]


@dataclass
class Compared:
    """What was measured; systems by their short names, times in seconds where nothing else is said."""

    machine: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    rounds: dict[str, list[Round]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    deaths: dict[str, list[float | None]] = field(default_factory=dict)  # of ours, by broker and who was killed
    peer_deaths: dict[str, list[float | None]] = field(default_factory=dict)
    limits: dict[str, float] = field(default_factory=dict)  # seconds for which a peer's step was waited for
    idle: dict[str, float] = field(default_factory=dict)  # of a deployed stack: share of a core, statements a second

    def write(self, path: Path) -> None:
        """Keep it."""
        path.parent.mkdir(exist_ok=True)
        kept = vars(self) | {"rounds": {name: [one.kept() for one in done] for name, done in self.rounds.items()}}
        path.write_text(json.dumps(kept, indent=1))

    @classmethod
    def read(cls, path: Path) -> Compared:
        """Return what was kept."""
        kept = json.loads(path.read_text())
        return cls(
            **{**kept, "rounds": {name: [Round.read(one) for one in done] for name, done in kept["rounds"].items()}}
        )
