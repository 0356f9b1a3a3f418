"""`safepoint.http`: what an error of an HTTP client proves about a request, for `@effect(not_sent=, rejected=)`.

It stands in `over_http/`, because a folder `http` would hide Python's own from all that start in the repository.
"""

from __future__ import annotations

from .predicates import not_sent, rejected

__all__ = ["not_sent", "rejected"]
