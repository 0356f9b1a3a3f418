"""The signature of a flow or a step: binds a call, encodes its arguments by their annotations, decodes them again.

Only the arguments that were given are encoded, so a new parameter with a default changes no committed input.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Coroutine
from functools import cached_property
from inspect import Parameter
from typing import TYPE_CHECKING, Any, cast, get_type_hints

import orjson

from ..ledger.codec import Codec, Encoded, input_hash
from ..ledger.errors import (
    ArgumentsMismatch,
    BadArguments,
    NotAwaited,
    UnresolvedAnnotation,
    ValueNotDecodable,
    ValueNotEncodable,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["Arguments", "Signature", "refuse_awaitable"]

Arguments = tuple[tuple[object, ...], dict[str, object]]


class Signature:
    """What a function takes and gives, as Python checks it and as the ledger stores it."""

    def __init__(self, fn: Callable[..., object], *, name: str, names: Mapping[str, object] | None = None) -> None:
        self.fn = fn
        self.name = name
        self._names = names or {}
        self._signature = inspect.signature(fn)

    def bind(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> dict[str, object]:
        """Bind a call as Python would; give only what was given, by parameter."""
        try:
            return self._signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise ArgumentsMismatch(name=self.name, text=str(error)) from None

    def encode(self, given: Mapping[str, object]) -> Encoded:
        """Encode bound arguments as one JSON object."""
        plain = {name: self._plain(name, value) for name, value in given.items()}
        try:
            return self.input.encode(plain)
        except ValueNotEncodable:
            for name, value in plain.items():
                refuse_awaitable(value, what=f"the argument {name} of {self.name}")
            raise

    def hash(self, encoded: Encoded) -> bytes:
        """Give the input hash of encoded arguments."""
        return input_hash(encoded.data)

    def decode(self, data: bytes) -> Arguments:
        """Decode stored arguments into positional and named ones."""
        return self._spread(self.input.decode(data))

    def read(self, given: Mapping[str, object] | str | bytes) -> Arguments:
        """Read arguments that somebody else made, a model or a client, or refuse them with `BadArguments`."""
        try:
            text = given if isinstance(given, (str, bytes)) else orjson.dumps(given)
            data = text.encode() if isinstance(text, str) else text
            return self.decode(data)
        except ValueNotDecodable as error:
            where = error.path.removeprefix("input").removeprefix(".")
            raise BadArguments(name=self.name, text=f"{where}: {error.text}" if where else error.text) from error
        except (TypeError, ValueError) as error:
            raise BadArguments(name=self.name, text=str(error)) from error

    def schema(self) -> dict[str, object]:
        """Give the JSON schema of the arguments, with the function's name and docstring."""
        schema = self.input.schema()
        schema["title"] = self.name
        if doc := inspect.getdoc(self.fn):
            schema["description"] = doc
        return schema

    @cached_property
    def input(self) -> Codec[dict[str, object]]:
        """The codec of the arguments, as one object."""
        from pydantic import ConfigDict  # noqa: PLC0415  # only who encodes pays for pydantic's import
        from typing_extensions import NotRequired, TypedDict  # noqa: PLC0415, UP035  # pydantic refuses typing's before 3.12

        fields: dict[str, object] = {}
        for name, parameter in self._signature.parameters.items():
            hint = self._shape(parameter)
            fields[name] = hint if _is_required(parameter) else NotRequired[hint]
        make: Any = TypedDict  # a type checker wants to read the fields, which only the annotations know
        arguments = make(self.name, fields)
        arguments.__pydantic_config__ = ConfigDict(
            extra="forbid", ser_json_bytes="base64", val_json_bytes="base64", arbitrary_types_allowed=True
        )
        return Codec(arguments, root="input")

    @cached_property
    def result(self) -> Codec[object]:
        """The codec of the result."""
        return Codec(self._hints.get("return", Any), root="result")

    @cached_property
    def _hints(self) -> dict[str, object]:
        try:
            return get_type_hints(self.fn, localns=dict(self._names), include_extras=True)
        except Exception as error:  # whatever an annotation raises; the caller learns whose it was
            hints = getattr(inspect.unwrap(self.fn), "__annotations__", {})
            text = f"{type(error).__name__}: {error}"
            shown = ", ".join(f"{name}: {hint}" for name, hint in hints.items())
            raise UnresolvedAnnotation(name=self.name, annotation=f"in ({shown})", text=text) from error

    def _shape(self, parameter: Parameter) -> object:
        hint: Any = self._hints.get(parameter.name, Any)
        match parameter.kind:
            case Parameter.VAR_POSITIONAL:
                return list[hint]
            case Parameter.VAR_KEYWORD:
                return dict[str, hint]
            case _:
                return hint

    def _plain(self, name: str, value: object) -> object:
        if self._signature.parameters[name].kind is Parameter.VAR_POSITIONAL:
            return list(cast("tuple[object, ...]", value))
        return value

    def _spread(self, given: Mapping[str, object]) -> Arguments:
        args: list[object] = []
        kwargs: dict[str, object] = {}
        by_position = True  # until one is left out: a stand-in may name its parameters as it likes
        for name, parameter in self._signature.parameters.items():
            if name not in given:
                by_position = False
                continue
            match parameter.kind:
                case Parameter.VAR_POSITIONAL:
                    args.extend(cast("list[object]", given[name]))
                case Parameter.VAR_KEYWORD:
                    kwargs.update(cast("dict[str, object]", given[name]))
                case Parameter.POSITIONAL_ONLY:
                    args.append(given[name])
                case Parameter.POSITIONAL_OR_KEYWORD if by_position:
                    args.append(given[name])
                case _:
                    kwargs[name] = given[name]
        return tuple(args), kwargs


def refuse_awaitable(value: object, *, what: str) -> None:
    """Refuse a coroutine or a child run where its result is meant: a forgotten await is a bug, no bad value."""
    if isinstance(value, Coroutine):
        value.close()
    if isinstance(value, Awaitable):
        raise NotAwaited(what=what)


def _is_required(parameter: Parameter) -> bool:
    variadic = parameter.kind in {Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD}
    return parameter.default is Parameter.empty and not variadic
