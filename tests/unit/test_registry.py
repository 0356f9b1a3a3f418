"""Declarations: names, duplicates, versions, and what may stand below a decorator."""

from __future__ import annotations

import importlib
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from safepoint import UNSURE, Budget, Lookup, effect, flow, on_start, step
from safepoint.errors import (
    BadArguments,
    ConfigError,
    DuplicateName,
    NotAwaited,
    UnknownFlow,
    UnknownStep,
    UnresolvedAnnotation,
)
from safepoint.tasks import registry


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Writes a module of that name and gives its import."""
    monkeypatch.syspath_prepend(tmp_path)
    names: list[str] = []

    def write(name: str, text: str) -> Path:
        path = tmp_path / f"{name}.py"
        path.write_text(text)
        importlib.invalidate_caches()
        names.append(name)
        return path

    yield write
    for name in names:
        sys.modules.pop(name, None)


STEP = "from safepoint import step\n@step\ndef {name}():\n    pass\n"


def test_the_same_name_twice_is_an_error_that_names_both_places(module):
    module("dup_one", STEP.format(name="dup_search"))
    module("dup_two", STEP.format(name="dup_search"))
    importlib.import_module("dup_one")

    with pytest.raises(DuplicateName, match=r"dup_one\.py:2.*|dup_two\.py:2") as refused:
        importlib.import_module("dup_two")

    assert refused.value.name == "dup_search"


def test_the_same_name_twice_in_one_module_is_an_error(module):
    module("dup_three", STEP.format(name="dup_again") + STEP.format(name="dup_again"))

    with pytest.raises(DuplicateName):
        importlib.import_module("dup_three")


def test_the_same_name_twice_in_one_function_is_an_error():
    @step(name="dup_local")
    def one() -> None: ...

    with pytest.raises(DuplicateName):

        @step(name="dup_local")
        def other() -> None: ...


def test_a_module_may_be_imported_again(module):
    path = module("again", STEP.format(name="again_search"))
    again = importlib.import_module("again")

    importlib.reload(again)
    path.write_text("# one line more\n" + STEP.format(name="again_search"))
    importlib.reload(again)
    runpy.run_path(str(path), run_name="__main__")

    assert registry.find_step("again_search").__module__ == "__main__"


def test_a_function_that_declares_may_run_again():
    def declare():
        @step
        def declared_again() -> None: ...

        return declared_again

    declare()
    latest = declare()

    assert registry.find_step("declared_again") is latest


def test_versions_of_one_flow_live_side_by_side():
    @flow(name="versioned", version="2")
    async def two() -> None: ...

    @flow(name="versioned", version="10", accepts=("2", "3"))
    async def ten() -> None: ...

    @flow(name="versioned", version="9", accepts="3")
    async def nine() -> None: ...

    assert registry.newest("versioned") is ten
    assert registry.find_flow("versioned", "2") is two
    assert registry.find_flow("versioned", "3") is ten
    assert registry.find_flow("versioned", "4") is None


def test_what_is_unknown_is_said_with_what_is_known():
    with pytest.raises(UnknownFlow, match="no flow 'nowhere' here"):
        registry.newest("nowhere")
    with pytest.raises(UnknownStep, match="no step 'nowhere' here"):
        registry.find_step("nowhere")


def test_a_module_that_cannot_be_imported_is_named(module):
    module("broken_flows", "1 / 0\n")

    with pytest.raises(ConfigError, match="broken_flows cannot be imported: ZeroDivisionError"):
        registry.load(["broken_flows"])


def test_start_hooks_are_kept_once():
    @on_start
    def warm_up() -> None: ...

    on_start(warm_up)

    assert registry.start_hooks().count(warm_up) == 1


untyped: Any = SimpleNamespace(step=step, flow=flow)  # a type checker refuses what is tried here


class Holder:
    def method(self) -> None: ...


async def stream():
    yield 1


@pytest.mark.parametrize(
    ("declare", "words"),
    [
        (lambda: untyped.step(3), "stands above a function, not 3"),
        (lambda: untyped.step(Holder.method), "is a method"),
        (lambda: untyped.step(stream), "is a generator"),
        (lambda: untyped.step(step(lambda: 1)), "stands above a function"),
        (lambda: untyped.flow(lambda: 1), "is no coroutine function"),
        (lambda: untyped.flow(stream), "is a generator"),
        (lambda: untyped.flow(Holder), "stands above an async function"),
        (lambda: untyped.step(wait=3)(lambda: 1), "one of tenacity's wait objects"),
        (lambda: untyped.step(timeout="soon")(lambda: 1), "timeout: 'soon' is no duration"),
    ],
)
def test_what_cannot_be_declared_is_refused_where_it_stands(declare, words: str):
    with pytest.raises(TypeError, match=words):
        declare()


@pytest.mark.parametrize("name", ["", "a b", "a/b", "a#1", "@start", "g2:x", "a:b", "x" * 201])
def test_a_name_that_cannot_stand_in_a_key_is_refused(name: str):
    with pytest.raises(ValueError, match="cannot be a name"):

        @step(name=name or " ")
        def named() -> None: ...


@pytest.mark.parametrize("budget", [Budget(), Budget(retries=2), Budget(tokens=5, retries=2)])
def test_a_step_reserves_tokens_or_money(budget: Budget):
    with pytest.raises(ValueError, match="accepted is a Budget of tokens, usd or both"):
        step(reserve=budget)(lambda: 1)


def test_a_flow_fails_or_is_held_when_its_budget_is_used_up():
    with pytest.raises(ValueError, match="accepted are 'fail' and 'hold'"):

        @untyped.flow(on_budget="ask")
        async def asking() -> None: ...


@pytest.mark.parametrize("options", [{"timeout": 0}, {"timeout": -1}, {"freshness": float("nan")}])
def test_a_bound_that_bounds_nothing_is_refused(options):
    with pytest.raises(ValueError, match="duration"):
        step(**options)(lambda: 1)


@pytest.mark.parametrize("version", ["", " 2", "a@b", 2])
def test_a_version_is_a_text(version):
    with pytest.raises(ValueError, match="cannot be a version"):

        @flow(version=version)
        async def versioned() -> None: ...


@step
def search(query: str, *, limit: int = 10) -> list[str]:
    """Search the web."""
    return [query] * limit


def test_a_step_gives_the_schema_of_its_arguments_for_tools():
    assert search.schema() == {
        "title": "search",
        "description": "Search the web.",
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "query": {"title": "Query", "type": "string"},
            "limit": {"title": "Limit", "type": "integer"},
        },
        "required": ["query"],
    }


@pytest.mark.parametrize(
    "arguments", [{"query": "a", "limit": "3"}, '{"query": "a", "limit": 3}', b'{"query": "a", "limit": 3}']
)
def test_a_call_is_made_from_what_a_model_wrote(arguments):
    call: Any = search.from_json(arguments)

    assert call.input.data == b'{"query":"a","limit":3}'
    call.close()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "query: Field required"),
        ({"query": "a", "max": 3}, "max: Extra inputs are not permitted"),
        ({"query": 3}, "query: Input should be a valid string"),
        ("no json", "Invalid JSON"),
        ([1], "should be"),
        ({"query": object()}, "not JSON serializable"),
    ],
)
def test_bad_arguments_are_refused_with_words_for_the_model(arguments, words: str):
    with pytest.raises(BadArguments, match=words):
        _ = search.from_json(arguments)


def test_the_undecorated_function_stays():
    assert search.fn("x", limit=2) == ["x", "x"]
    assert search.__name__ == "search"
    assert search.__doc__ == "Search the web."


def test_any_shape_of_parameters_comes_back():
    @step
    def shaped(a: int, /, b: str, *rest: float, c: bool = True, **more: int) -> None: ...

    given = shaped.signature.bind((1, "b", 2.5, 3.5), {"c": False, "d": 4})

    data = shaped.signature.encode(given).data

    assert data == b'{"a":1,"b":"b","rest":[2.5,3.5],"c":false,"more":{"d":4}}'
    assert shaped.decode_input(data) == ((1, "b", 2.5, 3.5), {"c": False, "d": 4})


def test_a_new_parameter_with_a_default_changes_no_committed_input():
    @step(name="grown_1")
    def before(a: int) -> None: ...

    @step(name="grown_2")
    def after(a: int, b: int = 1) -> None: ...

    one, other = (each.signature.encode(each.signature.bind((1,), {})) for each in (before, after))

    assert one == other


def test_annotations_of_local_types_are_resolved():
    from dataclasses import dataclass

    @dataclass
    class Local:
        n: int

    @step
    def locally(given: Local) -> list[Local]:
        return [given]

    assert locally.decode_result(locally.encode_result([Local(1)]).data) == [Local(1)]


def test_an_annotation_that_cannot_be_resolved_names_its_step():
    @step
    def puzzling(given: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821  # what the test is about

    with pytest.raises(UnresolvedAnnotation, match=r"puzzling: the annotation in \(given: Nowhere"):
        _ = puzzling(1)


def test_an_effect_takes_a_lookup_with_its_own_parameters():
    @effect(not_sent=(ConnectionRefusedError,), rejected=lambda error: "400" in str(error))
    def order(item: str, count: int) -> str:
        return item

    @order.lookup
    def _(item: str, count: int) -> Lookup[str]:
        return UNSURE

    wrong: Any = order
    with pytest.raises(TypeError, match="declared twice"):
        wrong.lookup(lambda item, count: None)
    with pytest.raises(TypeError, match="takes the parameters of the effect"):
        wrong.lookup(lambda item: None)
    with pytest.raises(TypeError, match="takes the result of the effect"):
        wrong.compensate(lambda: None)

    assert order.kind == "effect"
    assert order.safety.is_not_sent(ConnectionRefusedError())
    assert order.safety.is_rejected(RuntimeError("400"))
    assert not order.safety.is_rejected(RuntimeError("500"))


def test_a_coroutine_from_an_ordinary_step_is_refused_with_words():
    async def work() -> int:
        return 1

    @step
    def forgetful() -> int:
        return work()  # type: ignore[return-value]  # what the test is about

    with pytest.raises(NotAwaited, match="or declare it with `async def`"):
        forgetful.encode_result(forgetful.fn())
