"""The errors of effects; every other one is in `errors`."""
# ruff: noqa: N818  # they are named after what happened

from __future__ import annotations

from .errors import Permanent, SafepointError

__all__ = ["ApprovalDenied", "EffectRequestChanged"]


class EffectRequestChanged(SafepointError):
    """{key} was frozen with the request {frozen} and is now asked for with {asked}: a request never changes."""

    key: str
    frozen: str
    asked: str


class ApprovalDenied(Permanent):
    """{key} was not approved: {by} said no{note}."""

    key: str
    by: str
    note: str
