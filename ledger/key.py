"""The step key: the identity of a step inside a run, `path/step_id#iteration` within a generation; never positional."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

__all__ = ["START", "Key", "checked_name"]

# What a message, a log line and Flower can carry as it is; `/` and `#` would break the key, a leading `@` or `g2:`
# is ours.
_NAME = re.compile(r"(?!g\d+:|celery\.|safepoint\.)[^\s/#@\x00-\x1f\x7f][^\s/#\x00-\x1f\x7f]{0,199}")
_WIRE = re.compile(r"g(\d+):(.+)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Key:
    """The identity of one step of one run."""

    generation: int
    path: str
    step_id: str
    iteration: int

    def __str__(self) -> str:
        """Give `path/step_id#iteration`, without the generation."""
        own = f"{self.step_id}#{self.iteration}"
        return f"{self.path}/{own}" if self.path else own

    @property
    def wire(self) -> str:
        """Give the key as a message carries it: with the generation where that is not the first."""
        return str(self) if self.generation == 1 else f"g{self.generation}:{self}"

    @classmethod
    def parse(cls, text: str, *, generation: int = 1) -> Key:
        """Read what `str` wrote."""
        path, _, own = text.rpartition("/")
        step_id, mark, iteration = own.rpartition("#")
        if not mark or not step_id or not iteration.isdecimal():
            msg = f"{text!r} is no step key. Accepted: path/step_id#iteration, as in gather#1.2/search#1"
            raise ValueError(msg)
        return cls(generation, path, step_id, int(iteration))

    @classmethod
    def from_wire(cls, text: str) -> Key:
        """Read what `wire` wrote."""
        found = _WIRE.fullmatch(text)
        return cls.parse(found[2], generation=int(found[1])) if found else cls.parse(text)


START: Final = "@start"


def checked_name(name: object, *, what: str) -> str:
    """Give the name back, or refuse one that cannot stand in a step key."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        accepted = "1 to 200 characters without blanks, '/', '#' or a leading '@', 'celery.' or 'safepoint.'"
        msg = f"{what}: {name!r} cannot be a name. Accepted: {accepted}"
        raise ValueError(msg)
    return name
