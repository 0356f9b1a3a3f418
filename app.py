"""The Celery app for `celery -A safepoint.app worker|beat|flower`; it is built when it is first asked for.

`safepoint worker`, `beat` and `flower` do the same with less to type. An import alone reads no settings and opens
nothing.
"""

from __future__ import annotations

import os
import sys
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .config.settings import Settings
    from .tasks.app import App


def __getattr__(name: str) -> App:
    if name == "app":
        return _build()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@cache
def _build() -> App:
    """Build what the command needs: only a worker imports the flows and looks at the ledger."""
    from .config.resolve import endpoints  # noqa: PLC0415  # an import of this module does nothing yet
    from .config.settings import settings  # noqa: PLC0415
    from .tasks.app import make_app  # noqa: PLC0415

    here = settings()
    if "worker" in sys.argv:
        from .tasks.worker import build  # noqa: PLC0415  # as above

        return build(here).app
    if "flower" in sys.argv:
        _close_flower(here)
    return make_app(here, endpoints(here).broker_url)


def _close_flower(here: Settings) -> None:
    """Give Flower a password, read-only mode and the loopback address where the caller gave it nothing else.

    Without a password its pages, and what they can do to workers, are open to anyone who can reach them.
    """
    from .cli.processes import flower_password  # noqa: PLC0415  # as above

    if not any(argument.startswith(("--auth", "--basic")) for argument in sys.argv):
        os.environ.setdefault("FLOWER_BASIC_AUTH", f"{here.flower.user}:{flower_password(here)}")
    os.environ.setdefault("FLOWER_READ_ONLY", "true")
    os.environ.setdefault("FLOWER_ADDRESS", here.flower.host)
