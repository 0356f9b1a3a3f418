"""`doctor`: what it finds when something is provoked on servers of the test's own, and that nothing holds it up."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import redis
from prepared import FIRST, START, Ledger, step
from proxy import Proxy
from psycopg.types.json import Jsonb
from safepoint.cli.examine import examine
from safepoint.cli.finding import Finding
from safepoint.config.breakers import Breakers
from safepoint.config.lanes import Lane
from safepoint.config.settings import load
from safepoint.ledger import lanes, outbox
from safepoint.ledger.connect import connect
from safepoint.recovery import outcomes
from safepoint.recovery.breaker import Tally
from servers import ValkeyServer, with_path

Run = Callable[..., Any]
Look = Callable[[], "Found"]
NOWHERE = "127.0.0.1:1"
SECRET = "correct-horse"


class Found:
    """The findings of one call."""

    def __init__(self, ran: Any) -> None:
        self.code: int = ran.code
        self.all: list[dict[str, Any]] = ran.document["findings"]
        self.ok: bool = ran.document["ok"]
        self.printed: str = ran.out + ran.err

    def of(self, check: str) -> list[dict[str, Any]]:
        return [one for one in self.all if one["check"] == check]

    def bad(self, check: str) -> list[tuple[str, str, str]]:
        return [(one["level"], one["text"], one["next"]) for one in self.of(check) if one["level"] != "ok"]

    def only(self, check: str) -> tuple[str, str, str]:
        (one,) = self.bad(check)
        return one

    @property
    def checks(self) -> set[str]:
        return {one["check"] for one in self.all}


@pytest.fixture
def look(run: Run, ledger: Ledger) -> Look:
    """`look()`: what `doctor` finds of a ledger with two lanes, a live node, and no broker."""
    return lambda: Found(run("doctor", "--json"))


@pytest.fixture
def valkey(valkey_server: ValkeyServer, clean: pytest.MonkeyPatch) -> Iterator[redis.Redis]:
    """A Valkey of the test's own, which is the configured broker."""
    clean.setenv("SAFEPOINT_BROKER_URL", valkey_server.url)
    with redis.Redis.from_url(valkey_server.url) as client:
        yield client


# --- the document ---------------------------------------------------------------------------------------------------


def test_it_is_one_document_and_an_error_is_exit_code_1(look: Look) -> None:
    found = look()

    assert (found.code, found.ok) == (1, False)
    assert {frozenset(one) for one in found.all} == {frozenset({"check", "level", "text", "next"})}
    assert all((one["level"] == "ok") == (one["next"] is None) for one in found.all)
    assert [one["level"] for one in found.all] == sorted(
        (one["level"] for one in found.all), key=["error", "warning", "ok"].index
    )


def test_people_read_a_sentence_first_and_the_command_to_type_next(look: Look, run: Run, ledger: Ledger) -> None:
    ledger.enqueue(flow="billing", version="7")

    lines = run("doctor").out.splitlines()

    assert "errors and" in lines[0]
    place = next(number for number, line in enumerate(lines) if line.startswith("✗ versions"))
    assert "→ start a worker that has it" in lines[place + 1]
    assert any(line.startswith("✓ ledger") for line in lines)
    assert any(line.startswith("! configuration") for line in lines)


def test_wrong_usage_is_exit_code_2(run: Run, clean: pytest.MonkeyPatch) -> None:
    assert run("doctor", "--nope").code == 2
    clean.setenv("SAFEPOINT_WORKER__POOL", "gevent")
    assert run("doctor", "--json").code == 2


# --- what is not there ----------------------------------------------------------------------------------------------


def test_without_anything_it_says_what_to_start_and_starts_nothing(run: Run, tmp_path: Path) -> None:
    found = Found(run("doctor", "--json"))

    level, text, next_ = found.only("embedded")
    assert (found.code, level) == (1, "error")
    assert "no ledger here yet" in text
    assert "safepoint up" in next_
    assert not (tmp_path / "home").exists()


def test_embedded_servers_that_do_not_run_are_not_started(run: Run, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "embedded.json").write_text(json.dumps({"postgres_password": "p", "valkey_password": "v"}))

    found = Found(run("doctor", "--json"))

    assert found.only("embedded")[0] == "error"
    assert "not running" in found.only("embedded")[1]
    assert not (home / "postgres").exists()


def test_a_broker_that_is_away_hides_no_finding_of_the_ledger(look: Look, clean: pytest.MonkeyPatch) -> None:
    clean.setenv("SAFEPOINT_BROKER_URL", f"redis://:{SECRET}@{NOWHERE}/0")

    found = look()

    level, text, next_ = found.only("broker")
    assert (found.code, level) == (1, "error")
    assert "does not answer" in text
    assert "SAFEPOINT_BROKER_URL" in next_
    assert {"ledger", "schema", "clock", "versions", "lanes", "configuration"} <= found.checks
    assert SECRET not in found.printed


def test_a_password_that_somebody_repeats_is_not_printed(look: Look, clean: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "doctors_gossip.py").write_text(f"raise RuntimeError('redis://:{SECRET}@there does not answer')\n")
    clean.syspath_prepend(str(tmp_path))
    clean.setenv("SAFEPOINT_FLOWS", "doctors_gossip")
    clean.setenv("SAFEPOINT_BROKER_URL", f"redis://:{SECRET}@{NOWHERE}/0")

    found = look()

    assert "redis://:***@there does not answer" in found.printed
    assert SECRET not in found.printed


def test_a_ledger_that_is_away_hides_no_finding_of_the_broker(
    run: Run, valkey: redis.Redis, clean: pytest.MonkeyPatch
) -> None:
    clean.setenv("SAFEPOINT_LEDGER_URL", f"postgresql://me:{SECRET}@{NOWHERE}/x")

    found = Found(run("doctor", "--json"))

    assert found.only("ledger")[0] == "error"
    assert {"broker", "eviction", "visibility_timeout"} <= found.checks
    assert "versions" not in found.checks
    assert SECRET not in found.printed


def test_a_url_that_is_missing_is_a_finding(look: Look, run: Run, clean: pytest.MonkeyPatch) -> None:
    assert any("SAFEPOINT_BROKER_URL is not set" in text for _, text, _ in look().bad("configuration"))

    clean.delenv("SAFEPOINT_LEDGER_URL")
    clean.setenv("SAFEPOINT_BROKER_URL", f"redis://{NOWHERE}/0")
    found = Found(run("doctor", "--json"))

    assert "SAFEPOINT_LEDGER_URL is not set" in found.only("configuration")[1]
    assert found.only("broker")[0] == "error"


def test_servers_that_hang_cost_a_bounded_time(ledger: Ledger, valkey_server: ValkeyServer, tmp_path: Path) -> None:
    place = urlsplit(ledger.url)
    with Proxy("127.0.0.1", valkey_server.port) as hung, Proxy("127.0.0.1", place.port or 5432) as frozen:
        hung.freeze()
        frozen.freeze()
        there, gone = ledger.url, ledger.url.replace(f":{place.port}/", f":{frozen.port}/")
        assert gone != there

        half = told(there, f"redis://127.0.0.1:{hung.port}/0", tmp_path)
        none = told(gone, f"redis://127.0.0.1:{hung.port}/0", tmp_path)

    assert [one.level for one in half if one.check == "broker"] == ["error"]
    assert {"versions", "held", "notify"} <= {one.check for one in half}
    assert {one.check for one in none if one.level == "error"} == {"ledger", "broker"}


def told(ledger_url: str, broker_url: str, home: Path) -> list[Finding]:
    env = {"SAFEPOINT_LEDGER_URL": ledger_url, "SAFEPOINT_BROKER_URL": broker_url, "SAFEPOINT_HOME": str(home)}
    return examine(load(env=env), within=1.0)


def test_embedded_servers_that_are_being_started_are_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "embedded.json").write_text("{}")
    with (tmp_path / "embedded.door").open("w") as door:
        fcntl.flock(door, fcntl.LOCK_EX)

        (found,) = examine(load(env={"SAFEPOINT_HOME": str(tmp_path)}), within=0.2)

    assert (found.level, "starting or stopping" in found.text) == ("error", True)


def test_flows_that_do_not_come_to_an_end_are_not_waited_for(tmp_path: Path, clean: pytest.MonkeyPatch) -> None:
    (tmp_path / "doctors_endless.py").write_text("import threading\nthreading.Event().wait(5)\n")
    clean.syspath_prepend(str(tmp_path))
    settings = load(env={"SAFEPOINT_HOME": str(tmp_path), "SAFEPOINT_FLOWS": "doctors_endless"})

    (found,) = (one for one in examine(settings, within=0.2) if one.check == "flows")

    assert (found.level, "to import" in found.text) == ("error", True)


# --- the database ---------------------------------------------------------------------------------------------------


def test_a_schema_of_another_release_is_said(look: Look, ledger: Ledger) -> None:
    assert look().bad("schema") == []

    ledger.connection.execute("UPDATE safepoint.schema_version SET version_num = '0001'")
    old = look()
    ledger.connection.execute("UPDATE safepoint.schema_version SET version_num = '9999'")
    follows = look()
    ledger.connection.execute("DELETE FROM safepoint.compatible")
    new = look()

    assert old.only("schema")[0::2] == ("error", "safepoint db upgrade")
    assert new.only("schema")[0] == "error"
    assert "newer than this release knows" in new.only("schema")[1]
    assert [one["level"] for one in follows.of("schema")] == ["ok"]
    # Of the server is told all the same, of the tables nothing.
    assert [("latency" in one.checks, "versions" in one.checks) for one in (old, new)] == [(True, False)] * 2


def test_a_database_that_may_forget_commits_is_an_error(look: Look, ledger: Ledger) -> None:
    # The tests' server leaves its writes to the system's cache: both are findings.
    before = {text.split()[0]: level for level, text, _ in look().bad("durability")}
    setting(ledger, "synchronous_commit = off")

    after = {text.split()[0]: level for level, text, _ in look().bad("durability")}

    assert before == {"fsync": "error", "full_page_writes": "error"}
    assert after == {**before, "synchronous_commit": "error"}


def test_a_database_that_takes_no_writes_is_an_error(look: Look, ledger: Ledger) -> None:
    setting(ledger, "default_transaction_read_only = on")

    assert "read-only" in look().only("ledger")[1]


def setting(ledger: Ledger, text: str) -> None:
    name = urlsplit(ledger.url).path[1:]
    ledger.connection.execute(f"ALTER DATABASE {name} SET {text}")  # type: ignore[arg-type]  # our own words


def test_a_direct_url_of_another_database_is_an_error(look: Look, ledger: Ledger, clean: pytest.MonkeyPatch) -> None:
    assert [one["level"] for one in (*look().of("sessions"), *look().of("notify"))] == ["ok", "ok"]

    clean.setenv("SAFEPOINT_LEDGER_DIRECT_URL", with_path(ledger.url, "postgres"))

    level, text, _ = look().only("sessions")
    assert level == "error"
    assert "another database" in text


def test_a_direct_url_that_leads_nowhere_is_an_error(look: Look, clean: pytest.MonkeyPatch) -> None:
    clean.setenv("SAFEPOINT_LEDGER_DIRECT_URL", f"postgresql://me:{SECRET}@{NOWHERE}/x")

    found = look()

    assert found.only("sessions")[0] == "error"
    assert SECRET not in found.printed


def test_more_sessions_than_the_server_lets_in_are_an_error(look: Look, ledger: Ledger) -> None:
    assert look().bad("connections") == []

    ledger.connection.execute("UPDATE safepoint.nodes SET concurrency = 5000")

    level, text, next_ = look().only("connections")
    assert level == "error"
    assert "may open 5004 sessions" in text
    assert "max_connections" in next_


def test_another_timeline_and_a_clock_that_went_back_are_said(look: Look, ledger: Ledger) -> None:
    ledger.connection.execute(
        "UPDATE safepoint.identity SET timeline = '0000000F', last_scan_at = safepoint.now() + interval '1 hour'"
    )

    found = look()

    assert "a promoted standby" in found.only("incarnation")[1]
    assert "went back" in found.only("clock")[1]


# --- the work -------------------------------------------------------------------------------------------------------


def test_a_version_that_nobody_serves_is_an_error(look: Look, ledger: Ledger) -> None:
    ledger.enqueue()
    assert look().bad("versions") == []

    ledger.enqueue(flow="billing", version="7")
    ledger.enqueue(flow="billing", version="7")

    level, text, next_ = look().only("versions")
    assert level == "error"
    assert text.startswith("2 live runs of billing@7, the oldest ")
    assert "safepoint versions" in next_


def test_a_lane_with_steps_and_without_a_worker_is_an_error(look: Look, ledger: Ledger) -> None:
    ledger.connection.execute("INSERT INTO safepoint.lanes (name) VALUES ('bulk')")
    assert "bulk" not in str(look().bad("lanes"))

    ledger.started(step(FIRST, lane="bulk"))

    ((level, text, next_),) = (one for one in look().bad("lanes") if "bulk" in one[1])
    assert level == "error"
    assert text.startswith("1 step lie on lane bulk, the oldest for ")
    assert next_ == "safepoint worker --lanes bulk"


def test_a_lane_that_the_ledger_does_not_know_is_an_error(look: Look, ledger: Ledger) -> None:
    ledger.started(step(FIRST, lane="online"))
    ledger.connection.execute("UPDATE safepoint.steps SET lane = 'ghost' WHERE status = 'ready'")

    ((level, text, _),) = (one for one in look().bad("lanes") if "ghost" in one[1])

    assert level == "error"
    assert "no relay sends them" in text


def test_a_paused_lane_and_lanes_of_recovery_and_scans_without_a_worker_are_said(look: Look, ledger: Ledger) -> None:
    ledger.enqueue()
    ledger.connection.execute("UPDATE safepoint.lanes SET paused = true WHERE name = 'online'")
    ledger.connection.execute("UPDATE safepoint.nodes SET lanes = '{online}'")

    told = " ".join(text for level, text, _ in look().bad("lanes") if level == "warning")

    assert "Lane online is paused, and 1 step wait" in told
    assert "No live worker takes lane recovery" in told
    assert "No live worker takes lane control" in told


@pytest.mark.parametrize(("limit", "said"), [("paused = true", "is paused"), ("rate = 0", "admits nothing")])
def test_a_limit_of_the_lane_of_scans_keeps_nothing_back_and_is_said(
    look: Look, ledger: Ledger, limit: str, said: str
) -> None:
    ledger.connection.execute("INSERT INTO safepoint.lanes (name) VALUES ('control') ON CONFLICT DO NOTHING")
    ledger.connection.execute(f"UPDATE safepoint.lanes SET {limit} WHERE name = 'control'".encode())

    told = [(level, text) for level, text, _ in look().bad("lanes") if "Lane control" in text]

    assert [level for level, _ in told] == ["warning"]
    assert f"Lane control {said}. It has no steps" in told[0][1]


def test_workers_that_are_lost_or_missing_are_said(look: Look, ledger: Ledger) -> None:
    ledger.connection.execute("UPDATE safepoint.nodes SET lease_until = safepoint.now() - interval '1 s'")
    idle = look().bad("workers")
    ledger.enqueue()

    needed = look().bad("workers")

    assert [level for level, _, _ in idle] == ["warning", "warning"]
    assert "node-1 was seen" in idle[1][1]
    assert needed[0][:2] == ("error", "There are live runs and no live worker.")


def test_a_scan_that_does_not_come_is_an_error_once_there_is_something_to_lose(look: Look, ledger: Ledger) -> None:
    never = look().only("scan")
    ledger.enqueue()
    ledger.connection.execute("UPDATE safepoint.identity SET last_scan_at = safepoint.now() - interval '1 hour'")
    late = look().only("scan")
    ledger.connection.execute("UPDATE safepoint.identity SET last_scan_at = safepoint.now(), last_scan_by = 'me'")

    assert never[0] == "warning"
    assert late[0] == "error"
    assert "safepoint beat" in late[2]
    assert look().bad("scan") == []


def test_a_relay_is_missed_when_none_is_connected(look: Look, ledger: Ledger) -> None:
    ledger.enqueue()
    missing = look().only("relay")
    ledger.connection.execute("UPDATE safepoint.steps SET due_at = safepoint.now() - interval '1 hour'")
    needed = look().only("relay")

    with connect(ledger.url, name="safepoint relay 4711"):
        there = look().bad("relay")

    assert (missing[0], needed[0], needed[2], there) == ("warning", "error", "safepoint relay", [])


def test_held_runs_are_counted_by_reason(look: Look, ledger: Ledger) -> None:
    first, second, third = (ledger.enqueue() for _ in range(3))
    for made in (first, second):
        ledger.change(made, status="held", holds=Jsonb({"diverged": {}}))
    ledger.change(third, status="held", holds=Jsonb({"unknown_effect": {}}))

    told = {text: next_ for _, text, next_ in look().bad("held")}

    assert told["2 runs held: diverged."].startswith("safepoint runs --status held")
    assert told["1 run held: unknown effect."] == "safepoint effects"


def test_open_breakers_are_said(look: Look, ledger: Ledger) -> None:
    outcomes.introduce(ledger.connection, Breakers(), {"llm", "mail"})
    outcomes.record(ledger.connection, {"llm": Tally(failed=20)}, Breakers(), by="node-1")

    level, text, next_ = look().only("breakers")

    assert (level, next_) == ("warning", "safepoint breakers")
    assert text.startswith("The breaker of llm is open")


def test_a_configured_lane_that_differs_from_the_ledgers_is_said(look: Look, ledger: Ledger) -> None:
    with_rate = Lane.model_validate({"name": "recovery", "rate": 5.0, "burst": 50, "in_flight": 100})
    lanes.apply(ledger.connection, {"recovery": with_rate})

    told = {text.split()[1]: (text, next_) for _, text, next_ in look().bad("configuration") if "Lane" in text}

    assert set(told) == {"control", "recovery"}
    assert "rate 50 here, 5 there" in told["recovery"][0]
    assert told["recovery"][1] == "safepoint lanes apply"


def test_what_people_override_is_no_difference(look: Look, ledger: Ledger) -> None:
    lanes.apply(ledger.connection, load(env={}).lanes)
    lanes.override(ledger.connection, "recovery", {"rate": 5.0}, seconds=60, by="ann", why="slow")

    found = look()

    assert [one for one in found.bad("configuration") if "Lane" in one[1]] == []
    assert "Lane recovery is overridden for a while: rate." in str(found.of("configuration"))


def test_the_slots_of_a_lane_are_compared_with_its_cap(look: Look, ledger: Ledger) -> None:
    caps: dict[int, str] = {}
    for cap in (100, 1, 0):
        ledger.connection.execute("UPDATE safepoint.lanes SET in_flight = %s WHERE name = 'recovery'", [cap])
        ledger.connection.execute("UPDATE safepoint.nodes SET concurrency = 8")
        found = look()
        caps[cap] = " ".join(one["text"] for one in (*found.of("slots"), *found.of("lanes")))

    assert "100 steps in flight; its workers have 8 slots. The rest waits" in caps[100]
    assert "1 step in flight; its workers have 8 slots. It never fills" in caps[1]
    assert "recovery admits nothing" in caps[0]


# --- the code -------------------------------------------------------------------------------------------------------

BULKY = """
from safepoint import step

print("not a document")

@step(lane="doctor_bulk", timeout=5000)
def doctor_weighs() -> int:
    return 1

@step(lane="control")
def doctor_listens() -> int:
    return 1
"""


def test_lanes_that_the_code_asks_for_are_looked_for(look: Look, clean: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "doctors_flows.py").write_text(BULKY)
    clean.syspath_prepend(str(tmp_path))
    clean.setenv("SAFEPOINT_FLOWS", "doctors_flows")

    found = look()

    told = {text.split()[0]: level for level, text, _ in found.bad("flows")}
    assert told["doctor_weighs"] == "error"
    assert told["doctor_listens"] == "warning"


def test_flows_that_cannot_be_imported_are_an_error(look: Look, clean: pytest.MonkeyPatch) -> None:
    assert "SAFEPOINT_FLOWS is not set" in str(look().bad("flows"))

    clean.setenv("SAFEPOINT_FLOWS", "no_such_module")

    ((level, text, _),) = (one for one in look().bad("flows") if "no_such_module" in one[1])
    assert level == "error"
    assert "cannot be imported" in text


# --- the broker -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "check", "level"),
    [
        ({"maxmemory-policy": "allkeys-lru"}, "eviction", "warning"),
        ({"maxmemory-policy": "allkeys-lru", "maxmemory": "1gb"}, "eviction", "error"),
        ({"maxmemory": "1kb"}, "memory", "warning"),
    ],
)
def test_a_valkey_that_would_lose_or_refuse_messages_is_said(
    run: Run, valkey: redis.Redis, changes: dict[str, str], check: str, level: str
) -> None:
    assert Found(run("doctor", "--json")).bad(check) == []

    for name, value in changes.items():
        valkey.config_set(name, value)

    assert Found(run("doctor", "--json")).only(check)[0] == level


def test_a_valkey_that_has_nearly_all_its_clients_is_said(
    run: Run, valkey: redis.Redis, valkey_server: ValkeyServer
) -> None:
    valkey.config_set("maxclients", "30")
    with ExitStack() as crowd:
        for _ in range(27):
            crowd.enter_context(redis.Redis.from_url(valkey_server.url)).ping()

        level, text, _ = Found(run("doctor", "--json")).only("clients")

    assert level == "warning"
    assert "of 30 clients are connected" in text


def test_a_replica_takes_no_messages(run: Run, valkey: redis.Redis) -> None:
    valkey.replicaof("127.0.0.1", 1)  # type: ignore[no-untyped-call]  # redis-py's

    level, text, _ = Found(run("doctor", "--json")).only("broker")

    assert level == "error"
    assert "is a replica" in text


def test_messages_that_the_ledger_does_not_wait_for_are_said(look: Look, valkey: redis.Redis) -> None:
    assert look().bad("queues") == []

    valkey.lpush("online", *(b"{}" for _ in range(30)))
    valkey.lpush("control", *(b"{}" for _ in range(200)))

    told = " ".join(text for _, text, _ in look().bad("queues"))
    assert "The queue online holds 30 messages, the ledger waits for 0" in told
    assert "200 messages lie on the queue control" in told


def test_messages_that_the_broker_has_lost_are_said(look: Look, ledger: Ledger, valkey: redis.Redis) -> None:
    for _ in range(12):
        ledger.enqueue()
    sent = outbox.dispatch(ledger.connection, limit=100, grace=60, redispatch_after=60)
    fresh = look().bad("queues")
    ledger.connection.execute("UPDATE safepoint.steps SET dispatched_at = safepoint.now() - interval '1 hour'")

    level, text, _ = look().only("queues")

    assert (len(sent), fresh, level) == (12, [], "warning")
    assert text.startswith("12 steps were sent over 10 s ago and not claimed; the broker has 0 of")


@pytest.mark.rabbitmq
def test_rabbitmq_is_asked_what_it_tells(look: Look, clean: pytest.MonkeyPatch, rabbitmq_url: str) -> None:
    clean.setenv("SAFEPOINT_BROKER_URL", rabbitmq_url)

    found = look()

    assert found.of("broker")[0]["text"].startswith("RabbitMQ ")
    level, text, next_ = found.only("consumer_timeout")
    assert level == "warning"
    assert "cannot be asked" in text
    assert "consumer_timeout = " in next_
    assert found.bad("alarms") == []
    assert found.bad("queues") == []


def test_a_step_that_runs_longer_than_the_broker_waits_is_said(look: Look, ledger: Ledger, valkey: redis.Redis) -> None:
    made = ledger.enqueue()
    ledger.claim(made, START)
    ledger.connection.execute("UPDATE safepoint.steps SET expires_at = claimed_at + interval '30 days'")

    level, text, next_ = look().only("visibility_timeout")

    assert level == "warning"
    assert "A step that runs now may take 30 days" in text
    assert "SAFEPOINT_FLOWS" in next_
