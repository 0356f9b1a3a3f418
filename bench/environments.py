"""The peers' own environments: virtual ones for Python, a folder for npm, made once and kept under `bench/.peers`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

__all__ = ["ENVIRONMENTS", "Environment", "MissingPeerError", "ensure", "restate_server"]

CACHE = Path(__file__).resolve().parent / ".peers"


class MissingPeerError(Exception):
    """A peer cannot be had on this machine; its text says why."""


@dataclass(frozen=True, slots=True)
class Environment:
    """What is installed from PyPI, and from npm."""

    python: tuple[str, ...]
    npm: tuple[str, ...] = ()

    @property
    def version(self) -> str:
        """Name the peer's own packages with their versions."""
        return ", ".join([*self.npm, *(one for one in self.python if "==" in one)])


ENVIRONMENTS = {
    "dbos": Environment(("dbos==3.4.0",)),
    "langgraph": Environment(("langgraph==1.2.24", "langgraph-checkpoint-postgres==3.2.0", "psycopg[binary,pool]")),
    "absurd": Environment(("absurd-sdk==0.5.1", "absurdctl==0.5.1", "psycopg[binary]")),
    "restate": Environment(("restate-sdk==1.3.0", "hypercorn", "httpx"), ("@restatedev/restate-server@1.7.12",)),
}


def ensure(name: str) -> Path:
    """Return the Python of a peer's environment, which is made when it is not there yet."""
    wanted, folder = ENVIRONMENTS[name], CACHE / name
    stamp, python = folder / ".installed", folder / "venv" / "bin" / "python"
    words = "\n".join([sys.version, *wanted.python, *wanted.npm])
    if stamp.exists() and stamp.read_text() == words:
        return python
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    print(f"installing {wanted.version}", file=sys.stderr)
    _run([sys.executable, "-m", "venv", str(folder / "venv")], "venv")
    _run([str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *wanted.python], "pip")
    if wanted.npm:
        if shutil.which("npm") is None:
            raise MissingPeerError("npm is not installed")
        npm = ["npm", "install", "--prefix", str(folder), "--no-audit", "--no-fund", "--ignore-scripts", *wanted.npm]
        _run(npm, "npm")
    stamp.write_text(words)
    return python


def restate_server() -> Path:
    """Return Restate's server, a program inside its npm package for this machine."""
    found = sorted((CACHE / "restate" / "node_modules").glob("@restatedev/restate-server-*/bin/restate-server"))
    if not found:
        raise MissingPeerError("npm has no Restate server for this kind of machine")
    return found[0]


def _run(command: list[str], what: str) -> None:
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=os.environ | {"npm_config_loglevel": "error"}
    )
    if done.returncode:
        print(done.stderr[-2000:], file=sys.stderr)
        raise MissingPeerError(f"{what} could not install it (exit {done.returncode})")
