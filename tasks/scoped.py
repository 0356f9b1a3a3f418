"""A context variable that has a value for as long as a block runs."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Generic, TypeVar

__all__ = ["Scoped"]

T = TypeVar("T")


class Scoped(Generic[T]):
    """Sets a variable for a block; a class and no generator, because every step enters several."""

    __slots__ = ("_token", "_value", "_variable")

    def __init__(self, variable: ContextVar[T], value: T) -> None:
        self._variable, self._value = variable, value

    def __enter__(self) -> None:
        self._token = self._variable.set(self._value)

    def __exit__(self, *_: object) -> None:
        self._variable.reset(self._token)
