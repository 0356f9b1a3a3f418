"""What a declaration of an effect must not be able to break."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from safepoint.config.settings import Settings
from safepoint.ledger.key import Key
from safepoint.tasks.app import make_app
from safepoint.tasks.effect import Safety, effect
from safepoint.tasks.relay import message


async def later(error: BaseException) -> bool:
    return False


@pytest.mark.parametrize("name", ["not_sent", "rejected"])
def test_an_async_predicate_is_refused(name: str) -> None:
    with pytest.raises(TypeError, match="async"):
        Safety(**{name: later})  # type: ignore[arg-type]


def test_only_a_plain_yes_of_a_predicate_counts() -> None:
    safety = Safety(not_sent=lambda error: "no")  # type: ignore[arg-type,return-value]
    assert safety.is_not_sent(RuntimeError()) is False


def test_a_name_that_cannot_be_stored_is_shown_escaped() -> None:
    @effect(name="declared_named", external_id=lambda value: "a\x00\udcff")
    def named() -> int:
        return 1

    assert named.named(1) == "a\\x00\\udcff"


@pytest.mark.parametrize("kind", ["step", "effect", "compensation", "timer", "child", "advance", "cancel", "start"])
def test_a_worker_knows_the_task_of_every_kind(kind: str) -> None:
    row = SimpleNamespace(key=Key(1, "", "compensate:pay", 1), kind=kind, name="pay", lane="online", attempt=1, epoch=0)
    app = make_app(Settings(), "redis://localhost/0", steps={"pay": 1.0})
    assert message("r", row).name in app.tasks
