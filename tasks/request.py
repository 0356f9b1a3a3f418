"""What an app asks for, a call or a flow's name with arguments, as a request to the ledger: checked, encoded, named."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from datetime import datetime, timedelta
from difflib import get_close_matches
from functools import cache
from typing import Any, TypeAlias, TypedDict

from uuid_utils import uuid7

from ..ledger.codec import Codec, Encoded
from ..ledger.enqueue import Request
from ..ledger.errors import BadArguments, NotInStep, UnknownFlow, ValueNotEncodable, ValueTooLarge
from .branch import branch_or_none
from .budget import Budget
from .enqueue import EnqueueOptions, check_key
from .flow import Call, Flow
from .registry import flows, newest

__all__ = ["Arguments", "Item", "Options", "options_of", "refuse_in_flow", "request", "requests", "unknown_flow"]

Arguments: TypeAlias = Mapping[str, Any]
# A call, or a name with arguments, alone or with `Options` of its own, which are checked when they are read.
Item: TypeAlias = (
    Call[Any]
    | tuple[Call[Any], Mapping[str, Any]]
    | tuple[str, Arguments | None]
    | tuple[str, Arguments | None, Mapping[str, Any]]
)


class Options(TypedDict, total=False):
    """What is said about a run besides its arguments."""

    tenant: str
    key: str | None
    deadline: float | timedelta | datetime | None
    budget: Budget | Mapping[str, float] | None
    priority: int
    tags: Mapping[str, str]
    conversation: str | None
    start_at: float | timedelta | datetime | None
    connection: object


_OPTIONS = tuple(field.name for field in fields(EnqueueOptions))
_KEY_ALONE = frozenset({"key"})


def options_of(given: Mapping[str, object]) -> EnqueueOptions:
    """Check options, or name the one that is wrong."""
    for name in given:
        if name not in _OPTIONS:
            close = get_close_matches(name, _OPTIONS, n=1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            raise TypeError(f"{name!r} is no option.{hint} Accepted: {', '.join(_OPTIONS)}")
    if given.get("tags", ()) is None:
        given = {name: value for name, value in given.items() if name != "tags"}
    return EnqueueOptions(**given)  # type: ignore[arg-type]  # it checks what it is given


def refuse_in_flow() -> None:
    """Refuse to enqueue from a flow's own code, which runs again on every replay."""
    if branch_or_none() is not None:
        raise NotInStep(
            "a flow does not enqueue, because its code runs again on every replay: await the call, which makes a child"
            " run, or enqueue in a step"
        )


def request(
    what: Call[Any] | str, arguments: Arguments | None, *, version: str | None, terms: Mapping[str, object], limit: int
) -> Request:
    """Make a request with a new id; `terms` are checked already, `limit` bounds the input in bytes."""
    if isinstance(what, Call):
        if arguments is not None or version is not None:
            raise TypeError("a call brings its own arguments and version: give neither beside it")
        return _made(what.flow, what.input, terms=terms, limit=limit)
    name, given = _name(what), {} if arguments is None else arguments
    flow = _here(name, version)
    if flow is not None:
        return _made(flow, _read(flow, given), terms=terms, limit=limit)
    encoded = _plain().encode(_checked(name, given))
    return _bounded(Request(_new_id(), name, encoded, version, None, terms), limit)


def requests(
    items: Iterable[Item] | str | Flow[..., Any],
    arguments: Iterable[Arguments] | None,
    *,
    keys: Iterable[str | None] | None,
    version: str | None,
    options: Options,
    limit: int,
) -> list[Request]:
    """Make the requests of `enqueue_many`: one flow for many arguments, or a list of calls and names."""
    common = options_of(options).terms()
    keyless = {name: value for name, value in common.items() if name != "key"}
    made: list[Request] = []
    for what, given, own in _items(items, arguments, keys):
        if "connection" in own:
            raise TypeError("connection: accepted once for all runs, beside the other options of enqueue_many")
        if not own:
            terms = common
        elif own.keys() == _KEY_ALONE:  # the others are checked
            check_key(own["key"])
            terms = keyless if own["key"] is None else {**keyless, "key": own["key"]}
        else:
            terms = options_of({**options, **own}).terms()
        made.append(request(what, given, version=version, terms=terms, limit=limit))
    return made


def _items(
    items: Iterable[Item] | str | Flow[..., Any],
    arguments: Iterable[Arguments] | None,
    keys: Iterable[str | None] | None,
) -> Iterator[tuple[Call[Any] | str, Arguments | None, Mapping[str, Any]]]:
    if isinstance(items, Flow):
        items = items.name
    if isinstance(items, str):
        name = items
        for given, key in _with_keys(list(arguments or ()), keys):
            yield name, given, key
        return
    if arguments is not None:
        raise TypeError("arguments: accepted only beside one flow's name: enqueue_many('incident', [{...}, {...}])")
    for item, key in _with_keys(list(items), keys):
        match item:
            case Call():
                yield item, None, key
            case (Call() as call, Mapping() as own):
                yield call, None, {**own, **key}
            case (str() as name, Mapping() | None as given):
                yield name, given, key
            case (str() as name, Mapping() | None as given, Mapping() as own):
                yield name, given, {**own, **key}
            case _:
                accepted = "a call, (name, arguments), (name, arguments, options) or (call, options)"
                raise TypeError(f"{item!r} cannot be enqueued. Accepted: {accepted}")


def _with_keys(items: Sequence[Any], keys: Iterable[str | None] | None) -> Iterator[tuple[Any, Mapping[str, Any]]]:
    if keys is None:
        yield from ((item, {}) for item in items)
        return
    listed = list(keys)
    if len(listed) != len(items):
        raise ValueError(f"keys: there are {len(listed)} for {len(items)} runs. Accepted: one for each, or None")
    yield from ((item, {"key": key}) for item, key in zip(items, listed, strict=True))


def _name(what: object) -> str:
    if isinstance(what, str) and what and "\x00" not in what:
        return what
    raise TypeError(f"flow={what!r}: accepted is a flow's name, or a call as in incident(alert)")


def _here(name: str, version: str | None) -> Flow[..., Any] | None:
    if version is not None:
        return flows().get((name, version))
    return newest(name) if any(known == name for known, _ in flows()) else None


def _read(flow: Flow[..., Any], arguments: Arguments) -> Encoded:
    """Encode arguments of a flow that is here: JSON values by its types, or the very values of its parameters."""
    try:
        plain = _plain().encode(_checked(flow.name, arguments))
    except ValueNotEncodable:
        return flow(**arguments).input
    return flow.from_json(plain.data).input


def _checked(name: str, arguments: object) -> dict[str, Any]:
    if not isinstance(arguments, Mapping) or not all(isinstance(key, str) for key in arguments):
        raise BadArguments(name=name, text=f"{arguments!r} is no mapping of argument names to values")
    return dict(arguments)


@cache
def _plain() -> Codec[dict[str, Any]]:
    return Codec(dict[str, Any], root="input")


def _made(flow: Flow[..., Any], encoded: Encoded, *, terms: Mapping[str, object], limit: int) -> Request:
    return _bounded(Request(_new_id(), flow.name, encoded, flow.version, flow.frozen_versions(), terms), limit)


def _bounded(made: Request, limit: int) -> Request:
    if len(made.input.data) > limit:
        raise ValueTooLarge(path="input", size=len(made.input.data), limit=limit)
    return made


def _new_id() -> str:
    return str(uuid7())


def unknown_flow(name: str, known: Iterable[str]) -> UnknownFlow:
    """Make the error for a flow that nobody knows, with the name that may have been meant."""
    names = sorted({*known, *(flow for flow, _ in flows())})
    close = get_close_matches(name, names, n=1, cutoff=0.6)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    text = f"There is no flow {name!r}: it is not declared here, and no worker has served it yet.{hint}"
    listed = ", ".join(names) or "none"
    return UnknownFlow(f"{text} Known: {listed}.", name=name, known=listed)
