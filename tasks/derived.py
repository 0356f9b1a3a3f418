"""Time and chance in a flow: plain calls, derived and not stored, so a replay gives the same."""

from __future__ import annotations

import hashlib
import random as _random
import uuid
from typing import TYPE_CHECKING

from .branch import branch

if TYPE_CHECKING:
    from datetime import datetime

__all__ = ["now", "random", "uuid4"]


def now() -> datetime:
    """Give the time of the flow: the commit of the newest result that it has been given."""
    return branch(what="now()").situation.now


def random() -> _random.Random:
    """Give a generator seeded by run, generation, path and count: the same one on every replay."""
    return _random.Random(_seed("random"))


def uuid4() -> uuid.UUID:
    """Give a UUID derived from run, generation, path and count: the same one on every replay."""
    return uuid.UUID(bytes=_seed("uuid4")[:16], version=4)


def _seed(what: str) -> bytes:
    here = branch(what=f"{what}()")
    run = here.situation.run
    # '#' keeps these counts apart from those of steps, whose names cannot hold it.
    count = here.count(f"{what}#")
    return hashlib.sha256(f"{run.run_id}/{run.generation}/{here.path}/{what}#{count}".encode()).digest()
