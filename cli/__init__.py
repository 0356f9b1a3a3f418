"""The command line: one file a group of verbs.

Everything that reads prints one JSON document with `--json`; exit codes are 0 done, 1 failed, 2 wrong usage. Nothing
heavy is imported before a verb needs it, so that `safepoint --help` answers at once.
"""

from .app import main

__all__ = ["main"]
