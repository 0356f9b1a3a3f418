"""`lanes` and what belongs to it: what is shown, what is set over the file and taken back, what waits and why."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prepared import FIRST, SECOND, START, Ledger, step
from safepoint.config.lanes import Lane
from safepoint.ledger import lanes, nodes, outbox

Run = Callable[..., Any]
Write = Callable[[str], None]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """`write(text)`: the safepoint.toml of the folder in which the verbs run."""

    def write(text: str) -> None:
        (tmp_path / "safepoint.toml").write_text(text)

    return write


def one_of(ledger: Ledger, run: Run, name: str = "recovery") -> dict[str, Any]:
    (found,) = (lane for lane in run("lanes", "--json").document if lane["name"] == name)
    return dict(found)


def dispatched(ledger: Ledger) -> list[outbox.Dispatched]:
    return list(outbox.dispatch(ledger.connection, limit=10, grace=5, redispatch_after=10))


# apply.


def test_apply_says_what_it_has_changed_and_what_it_keeps(ledger: Ledger, run: Run, write: Write) -> None:
    lanes.apply(ledger.connection, {"old": Lane(name="old")})
    write("[lanes.recovery]\nrate = 20\n[lanes.gpu]\nin_flight = 4\nweights = {acme = 3}\n[breakers.llm]\nprobes = 7")

    first, again = run("lanes", "apply", "--by", "ann"), run("lanes", "apply", "--json").document

    assert first.code == 0
    lines = first.out.splitlines()
    assert "gpu: added" in lines
    assert "  gpu.weights.acme: 1 → 3" in lines
    assert "  recovery.in_flight: unlimited → 100" in lines
    assert "old: kept, the configuration does not have it (safepoint lanes remove old)" in lines
    assert "breakers: llm added" in lines
    assert {one["name"]: one["outcome"] for one in again["lanes"]} == {
        "control": "same", "gpu": "same", "old": "kept", "online": "same", "recovery": "same"
    }  # fmt: skip
    assert again["breakers"] == {"llm": "same"}
    assert run("lanes", "show", "gpu", "--json").document["history"][0]["by"] == "ann"


def test_apply_leaves_overrides_and_names_them(ledger: Ledger, run: Run, write: Write) -> None:
    run("lanes", "set", "recovery", "rate=3", "--by", "ann", "--why", "they migrate", "--for", "3h")
    write("[lanes.recovery]\nrate = 20\n")

    ran = run("lanes", "apply")

    assert "* recovery.rate = 3 until" in ran.out
    assert "the file says 20; by ann: they migrate" in ran.out
    assert (one_of(ledger, run)["rate"], one_of(ledger, run)["policy"]["rate"]) == (3.0, 20.0)


def test_a_dry_run_changes_nothing(ledger: Ledger, run: Run, write: Write) -> None:
    write("[lanes.gpu]\nin_flight = 4\n")

    ran = run("lanes", "apply", "--dry-run", "--json").document

    assert ran["dry_run"]
    assert {one["name"]: one["outcome"] for one in ran["lanes"]}["gpu"] == "added"
    assert [lane["name"] for lane in run("lanes", "--json").document] == ["online", "recovery"]


def test_a_file_that_contradicts_itself_applies_nothing(ledger: Ledger, run: Run, write: Write) -> None:
    write("[lanes.recovery]\nrate = 9\n[lanes.gpu]\nin_flight = 4\ntenant_in_flight = 5\n")

    ran = run("lanes", "apply")

    assert (ran.code, "tenant_in_flight is 5; it must be at most in_flight (4)" in ran.err) == (2, True)
    write("")
    assert one_of(ledger, run)["rate"] == 5.0


# set, unset, pause, resume.


def test_what_is_set_is_listed_with_author_end_and_reason(ledger: Ledger, run: Run) -> None:
    said = run("lanes", "set", "recovery", "rate=2.5", "weights.acme=3", "--by", "ann", "--why", "slow", "--for", "3h")

    listed = one_of(ledger, run)
    printed = run("lanes").out

    assert said.out.splitlines() == ["recovery.rate = 2.5 for 3 h", "recovery.weights = acme=3 for 3 h"]
    assert (listed["rate"], listed["weights"], listed["limited"]) == (2.5, {"acme": 3.0}, True)
    rate = listed["overrides"]["rate"]
    assert (rate["value"], rate["by"], rate["why"]) == (2.5, "ann", "slow")
    assert 10_700 < rate["seconds_left"] <= 10_800
    assert "2.5*" in printed
    assert "weights acme=3*" in printed
    assert "* recovery.rate = 2.5 until " in printed


def test_a_limit_is_lifted_by_a_word_until_it_is_unset(ledger: Ledger, run: Run) -> None:
    run("lanes", "apply")
    run("lanes", "set", "recovery", "rate=unlimited", "in_flight=3", "--why", "x")
    lifted = one_of(ledger, run)

    one = run("lanes", "unset", "recovery", "rate", "burst", "--why", "y")
    both = run("lanes", "unset", "recovery", "--why", "y", "--json").document
    none = run("lanes", "unset", "recovery", "--why", "y")

    assert (lifted["rate"], lifted["in_flight"], lifted["overrides"]["rate"]["until"]) == (None, 3, None)
    assert one.out.splitlines() == ["recovery.rate = 50", "recovery: burst was not overridden."]
    assert none.out.splitlines() == ["recovery: nothing was overridden."]
    assert (both["rate"], both["in_flight"], both["overrides"]) == (50.0, 100, {})


def test_a_lane_is_paused_and_resumed(ledger: Ledger, run: Run) -> None:
    made = ledger.enqueue()
    paused = run("lanes", "pause", "online", "--for", "30m", "--by", "ann", "--why", "they migrate")
    kept = dispatched(ledger)
    (reason,) = ledger.reasons(made)

    resumed = run("lanes", "resume", "online", "--why", "done")

    assert (paused.out, resumed.out) == ("online.paused = true for 30 min\n", "online.paused = false\n")
    assert reason["text"].endswith("on lane online: the lane is paused (set by ann for 30 min more: they migrate)")
    assert (kept, [row.run_id for row in dispatched(ledger)]) == ([], [made])


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (("set", "recovry", "rate=5", "--why", "x"), 1, "There is no lane recovry. There are: online, recovery."),
        (("unset", "gpu", "--why", "x"), 1, "There is no lane gpu. There are: online, recovery."),
        (("pause", "gpu", "--why", "x"), 1, "There is no lane gpu."),
        (("resume", "gpu", "--why", "x"), 1, "There is no lane gpu."),
        (("show", "gpu"), 1, "There is no lane gpu."),
        (("remove", "gpu", "--why", "x"), 1, "There is no lane gpu."),
        (("remove", "online", "--why", "x"), 1, "Lane online is in use: the configuration has it"),
        (("set", "recovery", "rate=5"), 2, "--why"),
        (("set", "recovery", "rate=fast", "--why", "x"), 2, "lane recovery: rate: 'fast' is not accepted. Accepted: a"),
        (("set", "recovery", "rat=5", "--why", "x"), 2, "rat: unknown key; did you mean rate?"),
        (("set", "recovery", "rate", "--why", "x"), 2, "'rate' sets nothing; accepted is KEY=VALUE"),
        (("set", "recovery", "rate=", "--why", "x"), 2, "'rate=' sets nothing"),
        (("set", "recovery", "weights=3", "--why", "x"), 2, "a weight is one tenant's, as in weights.acme=3"),
        (("set", "recovery", "weights.acme=0", "--why", "x"), 2, "weights.acme: '0' is not accepted"),
        (("set", "recovery", "rate.acme=0", "--why", "x"), 2, "other keys have no dot"),
        (("set", "recovery", "rate=1", "rate=2", "--why", "x"), 2, "rate is set twice"),
        (("set", "recovery", "in_flight=5", "tenant_in_flight=6", "--why", "x"), 2, "must be at most in_flight (5)"),
        (("set", "recovery", "rate=5", "--why", "x", "--for", "soon"), 2, "90s, 30m, 2h"),
        (("set", "recovery", "rate=5", "--why", "x", "--for", "99999999d"), 2, "90s, 30m, 2h"),
        (("unset", "recovery", "rat", "--why", "x"), 2, "did you mean rate?"),
    ],
)
def test_what_cannot_be_is_said(ledger: Ledger, run: Run, arguments: tuple[str, ...], code: int, told: str) -> None:
    ran = run("lanes", *arguments)

    assert ran.code == code
    assert told in " ".join(ran.err.replace("│", " ").split())
    assert one_of(ledger, run)["overrides"] == {}


def test_a_lane_that_is_in_use_is_not_removed(ledger: Ledger, run: Run) -> None:
    lanes.apply(ledger.connection, {"old": Lane(name="old")})
    made = ledger.started(step(FIRST, lane="old"))

    refused = run("lanes", "remove", "old", "--why", "x")
    ledger.connection.execute("DELETE FROM safepoint.runs WHERE run_id = %s", [made])
    removed = run("lanes", "remove", "old", "--why", "x")

    assert (refused.code, refused.err) == (1, "safepoint: Lane old is in use: 1 ready. Nothing was removed.\n")
    assert (removed.code, removed.out) == (0, "old is removed.\n")


# show, why.


def test_show_tells_policy_overrides_tenants_and_history(ledger: Ledger, run: Run) -> None:
    run("lanes", "apply", "--by", "bob")
    run("lanes", "set", "online", "in_flight=1", "weights.acme=3", "--by", "ann", "--why", "slow")
    for tenant in ("acme", "acme", "globex"):
        ledger.enqueue(tenant=tenant)
    dispatched(ledger)

    lane = run("lanes", "show", "online", "--json").document
    shown = run("lanes", "show", "online").out

    assert (lane["in_flight"], lane["policy"], sorted(lane["overrides"])) == (1, {}, ["in_flight", "weights"])
    assert sorted((one["tenant"], one["queued"] + one["in_flight"], one["weight"]) for one in lane["tenants"]) == [
        ("acme", 2, 3.0), ("globex", 1, 1.0)
    ]  # fmt: skip
    assert [(one["what"], one["by"]) for one in lane["history"]] == [("overridden", "ann")]
    assert [node["id"] for node in lane["nodes"]] == ["node-1"]
    assert "2 queued, 1 sent, 0 running, 1 workers; room for 0 more." in shown
    assert "overridden in_flight=1 weights=acme=3" in shown


def test_why_says_which_limit_a_step_waits_for(ledger: Ledger, run: Run) -> None:
    run("lanes", "set", "online", "in_flight=1", "--by", "ann", "--why", "slow")
    sent, waits = ledger.enqueue(), ledger.enqueue()
    dispatched(ledger)
    (full,) = ledger.reasons(waits)
    ledger.claim(sent, START)

    run("lanes", "set", "online", "in_flight=5", "tenant_in_flight=1", "--by", "ann", "--why", "slow", "--for", "3h")
    (of_tenant,) = ledger.reasons(waits)

    assert full["text"].endswith("1 of 1 are in flight (set by ann until it is lifted: slow)")
    assert full["next"] == "safepoint lanes show online"
    assert "1 of 1 of tenant default are in flight (set by ann for 3 h more: slow)" in of_tenant["text"]
    assert "Next: safepoint lanes show online" in run("show", waits).out


def test_why_says_that_a_rate_is_used_up(ledger: Ledger, run: Run) -> None:
    run("lanes", "set", "recovery", "rate=0.0001", "--why", "slow")
    made = ledger.started(step(FIRST, lane="recovery"), step(SECOND, lane="recovery"))
    dispatched(ledger)

    (reason,) = ledger.reasons(made)

    assert "its 0.0001 steps a second are used up" in reason["text"]


# Workers and lanes.

FLOWS = """
from safepoint import flow, step

@step(lane="gpu")
def look() -> int:
    return 1

@flow(version="1")
async def triage(alert: int) -> int:
    return await look()
"""


def environment(folder: Path, ledger: Ledger, broker: str) -> dict[str, str]:
    (folder / "on_gpu.py").write_text(FLOWS)
    clean = {name: value for name, value in os.environ.items() if not name.startswith("SAFEPOINT_")}
    given = {"SAFEPOINT_LEDGER_URL": ledger.url, "SAFEPOINT_BROKER_URL": broker, "SAFEPOINT_FLOWS": "on_gpu"}
    return {**clean, **given, "SAFEPOINT_HOME": str(folder / "home")}


WORKER = [sys.executable, "-m", "safepoint", "worker", "--pool", "threads", "--concurrency", "1"]


def test_a_worker_refuses_a_step_whose_lane_is_not_configured(ledger: Ledger, tmp_path: Path) -> None:
    env = environment(tmp_path, ledger, "redis://127.0.0.1:1/0")

    ran = subprocess.run(WORKER, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)

    told = "step look: lane=gpu: there is no such lane; add [lanes.gpu] to safepoint.toml"
    assert (ran.returncode, ran.stderr.splitlines()[-1]) == (
        2,
        f"safepoint: {told}. Accepted: control, online, recovery",
    )


def test_a_worker_that_starts_adds_the_lane_that_its_steps_wait_on(
    ledger: Ledger, tmp_path: Path, valkey_url: str, write: Write, eventually: Callable[..., None]
) -> None:
    made = ledger.started(step(FIRST, lane="gpu"))
    nodes.stop(ledger.connection, "node-1")
    before = dispatched(ledger)
    write("[lanes.gpu]\nin_flight = 2\n")
    env = environment(tmp_path, ledger, valkey_url)
    worker = subprocess.Popen([*WORKER, "--lanes", "gpu"], cwd=tmp_path, env=env, stderr=subprocess.DEVNULL)

    def goes() -> None:
        assert worker.poll() is None
        assert [(row.run_id, row.lane) for row in dispatched(ledger)] == [(made, "gpu")]

    try:
        eventually(goes, timeout=60)
    finally:
        worker.terminate()
        worker.wait(30)
    assert before == []


# plan.

PLAN = """
[worker]
concurrency = 4
[dependencies.llm]
requests_per_second = 12
seconds_per_call = 2
[dependencies.ledger]
connections = 50
"""


def test_the_plan_names_the_narrowest_and_what_to_set(ledger: Ledger, run: Run, write: Write) -> None:
    write(PLAN)
    run("lanes", "apply")
    ledger.register("node-2")

    found, printed = run("lanes", "plan", "--json").document, run("lanes", "plan").out

    assert (found["narrowest"], found["calls_per_second"]) == ("llm", {"value": 12.0, "by": "llm"})
    assert (found["slots"], found["workers"]) == ({"value": 24, "by": "llm"}, {"value": 6, "by": "llm"})
    assert found["recovery"] == {"rate": {"value": 3.0, "by": "llm"}, "in_flight": {"value": 6, "by": "llm"}}
    assert found["present"]["recovery"] == {"rate": 50.0, "burst": 50.0, "in_flight": 100}
    assert (found["present"]["source"], found["present"]["workers"], found["present"]["slots"]) == ("ledger", 2, 4)
    assert "recovery.rate = 50 is 4.2 times what llm bears (12/s)." in printed
    assert "Next: safepoint lanes set recovery rate=3 burst=3 in_flight=6 --why TEXT" in printed


def test_what_the_plan_says_to_set_is_within_it(ledger: Ledger, run: Run, write: Write) -> None:
    write(PLAN)
    run("lanes", "apply")
    command = run("lanes", "plan", "--json").document["next"]

    run(*command.split()[1:-1], "as planned")

    after = run("lanes", "plan", "--json").document
    assert (after["findings"], after["next"]) == ([], None)
    assert "The recovery lane is within it." in run("lanes", "plan").out


def test_the_plan_measures_what_is_not_configured(ledger: Ledger, run: Run, write: Write) -> None:
    write("[dependencies.llm]\ntokens_per_minute = 60000\n")
    made = ledger.started(step(FIRST, uses="llm"))
    ledger.claim(made, FIRST)
    ledger.commit(made, FIRST, tokens=500)

    (llm,) = run("lanes", "plan", "--json").document["dependencies"]

    assert (llm["tokens_per_call"], llm["calls_per_second"]) == ({"value": 500.0, "source": "measured"}, 2.0)
    assert (llm["seconds_per_call"]["source"], llm["calls_measured"], llm["missing"]) == ("measured", 1, [])
    assert "500 tokens (measured)" in run("lanes", "plan").out


def test_the_plan_needs_no_ledger(clean: pytest.MonkeyPatch, run: Run, write: Write) -> None:
    write(PLAN + "[dependencies.mail]\ntokens_per_minute = 5\n")

    ran = run("lanes", "plan")

    assert ran.code == 0
    assert "tokens_per_call is neither configured nor measured" in ran.out
    assert "Narrowest: llm, 12 calls a second." in ran.out


def test_a_plan_of_nothing_says_what_to_add(ledger: Ledger, run: Run) -> None:
    assert "[dependencies.llm]" in run("lanes", "plan").out
    assert run("lanes", "plan", "--json").document["narrowest"] is None
