"""Stands in for a search engine and the web: it searches the files of `pages/`, and has bad moments.

No network. Each process is told once that the engine is busy for every third query, and one page in the index is gone.
"""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass
from pathlib import Path

PAGES = Path(__file__).parent / "pages"
SITE = "https://library.example/"
GONE = ("a-forgotten-study", "A forgotten study of heat pumps in old houses", "Heat pumps in 200 old houses, measured.")

_asked: set[str] = set()


class BusyError(Exception):
    """The search engine is busy."""


class GoneError(Exception):
    """The page is no longer there."""


class TooManyError(Exception):
    """The site wants to be left alone for a while."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"429: in {seconds} s")
        self.seconds = seconds


@dataclass(frozen=True)
class Hit:
    """One result of a search."""

    url: str
    title: str
    snippet: str


def search(query: str, *, limit: int) -> list[Hit]:
    """Find the pages that share most words with the query."""
    if query not in _asked and zlib.crc32(query.encode()) % 3 == 0:
        _asked.add(query)
        raise BusyError(query)
    wanted = words(query)
    scored = [(len(wanted & words(f"{title} {text}")), name, title, text) for name, title, text in _index()]
    best = sorted((one for one in scored if one[0] > 1), key=lambda one: (-one[0], one[1]))
    return [Hit(f"{SITE}{name}", title, text[:160]) for _, name, title, text in best[:limit]]


def fetch(url: str) -> str:
    """Give the text of a page."""
    name = url.removeprefix(SITE)
    path = PAGES / f"{name}.md"
    if not re.fullmatch(r"[a-z-]+", name) or not path.exists():
        raise GoneError(f"404: {url}")
    if url not in _asked and zlib.crc32(url.encode()) % 3 == 0:
        _asked.add(url)
        raise TooManyError(0.2)
    return path.read_text()


def forget() -> None:
    """Have the bad moments again, as a new process has them."""
    _asked.clear()


def words(text: str) -> set[str]:
    """Give the words of a text that mean something, without their endings."""
    return {word[:5] for word in re.findall(r"[a-z]{3,}", text.lower())} - {"the", "and", "are", "any", "for", "with"}


def _index() -> list[tuple[str, str, str]]:
    pages: list[tuple[str, str, str]] = [GONE]
    for path in sorted(PAGES.glob("*.md")):
        title, _, text = path.read_text().partition("\n")
        pages.append((path.stem, title.removeprefix("# "), " ".join(text.split())))
    return pages
