"""What an operator may set, and what is said when it is wrong."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from pydantic import ValidationError
from safepoint.config.errors import ConfigError
from safepoint.config.settings import Settings, load


@pytest.fixture
def write(tmp_path: Path):
    def write(text: str) -> Path:
        path = tmp_path / "safepoint.toml"
        path.write_text(text)
        return path

    return write


def problems(path: Path | None, env: dict[str, str] | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        load(path, env or {})
    return str(caught.value)


def test_nothing_configured_gives_the_defaults(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    settings = load(env={})

    assert settings == Settings()
    assert settings.home == tmp_path / ".safepoint"
    assert settings.artifacts_url == f"file://{tmp_path}/.safepoint/artifacts"
    assert set(settings.lanes) == {"online", "recovery", "control"}
    assert settings.lanes["recovery"].limited
    assert not settings.lanes["online"].limited


def test_the_environment_lies_over_the_file_and_the_file_over_the_defaults(write):
    path = write('flows = ["a"]\n[worker]\nlease = 30\nbeat = 5\n[lanes.recovery]\nrate = 10\n')
    env = {"SAFEPOINT_FLOWS": "b.c, d", "SAFEPOINT_WORKER__LEASE": "60", "SAFEPOINT_LANES__RECOVERY__BURST": "7"}

    settings = load(path, env)

    assert settings.flows == ("b.c", "d")
    assert (settings.worker.lease, settings.worker.beat, settings.worker.concurrency) == (60.0, 5.0, 2)
    recovery = settings.lanes["recovery"]
    assert (recovery.rate, recovery.burst, recovery.in_flight) == (10.0, 7, 100)


def test_a_file_is_found_by_its_variable_and_a_missing_one_is_an_error(write, tmp_path):
    path = write('log = "json"')

    assert load(env={"SAFEPOINT_CONFIG": str(path)}).log == "json"
    assert "no such file" in problems(None, {"SAFEPOINT_CONFIG": str(tmp_path / "other.toml")})


def test_a_relative_home_in_the_file_lies_beside_the_file(write, tmp_path):
    assert load(write('home = "data"'), {}).home == tmp_path / "data"
    assert load(write('home = "data"'), {"SAFEPOINT_HOME": "here"}).home == Path.cwd() / "here"


def test_a_limit_of_the_defaults_is_lifted_by_a_word(write):
    settings = load(write('[lanes.recovery]\nrate = "unlimited"\nin_flight = "unlimited"\n'), {})

    assert not settings.lanes["recovery"].limited


def test_a_lane_of_ones_own_is_queued_under_its_name(write):
    settings = load(write('[lanes.bulk]\nrate = 2.5\n[worker]\nlanes = ["bulk"]\n'), {})

    bulk = settings.lanes["bulk"]
    assert (bulk.name, bulk.queue, bulk.bucket) == ("bulk", "bulk", 3)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("flowss = []", "flowss: unknown key; did you mean flows?"),
        ("[worker]\nconcurency = 3", "worker.concurency: unknown key; did you mean worker.concurrency?"),
        ("[lanes.recovery]\nrat = 3", "lanes.recovery.rat: unknown key; did you mean lanes.recovery.rate?"),
        ("xyzzy = 1", "xyzzy: unknown key. Accepted: ledger_url, "),
        ('log = "xml"', "log: 'xml' is not accepted. Accepted: console or json"),
        ("[worker]\nlease = -1", "worker.lease: -1 is not accepted. Accepted: a number above 0"),
        ("[worker]\nbeat = 9.0", "beat is 9 s; it must be at most a third of lease (15 s)"),
        ('[worker]\nlanes = ["bulk"]', "no lane 'bulk'; there are control, online, recovery"),
        (
            "[lanes.recovery]\nin_flight = -1",
            "lanes.recovery.in_flight: -1 is not accepted. Accepted: a whole number at least 0",
        ),
        ("[lanes.gpu]\nburst = 5", "lanes.gpu: burst is 5, and there is no rate that it could belong to"),
        (
            "[lanes.gpu]\nin_flight = 5\ntenant_in_flight = 6",
            "lanes.gpu: tenant_in_flight is 6; it must be at most in_flight (5)",
        ),
        ("[lanes.gpu]\nrate = 1e-9", "lanes.gpu: rate is 1e-09; it must be 0"),
        ("[lanes.gpu]\nrate = 'fast'", "lanes.gpu.rate: 'fast' is not accepted. Accepted: a number at least 0"),
        ("[lanes.gpu]\nrate = 'fast'", "or unlimited"),
        ("[lanes.gpu]\nwindow = 0", "lanes.gpu.window: 0 is not accepted. Accepted: a whole number at least 1"),
        (
            "[lanes.gpu.weights]\nacme = 0",
            "lanes.gpu.weights.acme: 0 is not accepted. Accepted: a number at least 0.001",
        ),
        ("[lanes.gpu.weights]\nacme = -1", "lanes.gpu.weights.acme: -1 is not accepted"),
        ("[lanes.gpu.weights]\nacme = 'much'", "lanes.gpu.weights.acme: 'much' is not accepted"),
        ("[lanes.gpu.weights]\n'' = 1", "lanes.gpu.weights: '' is no name"),
        ("[lanes.gpu]\nweights = 3", "lanes.gpu.weights: 3 is not accepted. Accepted: names, each with a number"),
        ("[lanes.gpu]\nwheights = 3", "lanes.gpu.wheights: unknown key; did you mean lanes.gpu.weights?"),
        ("[lanes.gpu]\norder = 'age'", "lanes.gpu.order: 'age' is not accepted. Accepted: priority or deadline"),
        ("[lanes.gpu]\nrate = true", "lanes.gpu.rate: True is not accepted. Accepted: a number at least 0"),
        ("[lanes.gpu]\nwindow = false", "lanes.gpu.window: False is not accepted. Accepted: a whole number"),
        ("[lanes.gpu]\ninline_slice = true", "lanes.gpu.inline_slice: True is not accepted. Accepted: a number"),
        ("[lanes.gpu.weights]\nacme = true", "lanes.gpu.weights.acme: True is not accepted. Accepted: a number"),
        ("[lanes.gpu]\npaused = 'yes'", "lanes.gpu.paused: 'yes' is not accepted. Accepted: true or false"),
        ("[lanes.gpu]\nstop_on_breaker = 1", "stop_on_breaker: 1 is not accepted. Accepted: true or false"),
        (
            "[lanes.gpu]\nqueue = 'online'",
            "lanes.gpu.queue: 'online' is the queue of lane online already; accepted is one that no other lane has",
        ),
        ("[lanes.GPU]\nrate = 1", "lanes.GPU: 'GPU' is not accepted"),
        (
            "[dependencies.llm]\ntokens_per_call = 9",
            "dependencies.llm: there is no limit; set one of tokens_per_minute",
        ),
        (
            "[dependencies.llm]\ntokens_per_minut = 9",
            "dependencies.llm.tokens_per_minut: unknown key; did you mean dependencies.llm.tokens_per_minute?",
        ),
        (
            "[dependencies.llm]\nconnections = 4\nshare_of_recovery = 25",
            "dependencies.llm.share_of_recovery: 25 is not accepted. Accepted: a number above 0 at most 1",
        ),
        (
            "[dependencies.db]\nrequests_per_second = 4\nconnections_per_slot = 1",
            "dependencies.db: connections_per_worker and connections_per_slot belong to connections",
        ),
        ("worker = 3", "worker: "),
        ("lanes = 3", "lanes: "),
        ('flows = ["a b"]', "flows"),
        ("log = ", "is not TOML"),
    ],
)
def test_what_is_wrong_in_the_file_is_named_with_the_file(write, text, said):
    path = write(text)

    message = problems(path)

    assert message.startswith(f"{path}: ")
    assert said in message


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("SAFEPOINT_LEDGERURL", "x", "unknown key; did you mean SAFEPOINT_LEDGER_URL?"),
        ("SAFEPOINT_WORKR__BEAT", "1", "unknown key; did you mean SAFEPOINT_WORKER__BEAT?"),
        ("SAFEPOINT_LANES__RECOVRY__RATE", "1", "unknown key; did you mean SAFEPOINT_LANES__RECOVERY__RATE?"),
        ("SAFEPOINT_LANES__RECOVERY", "1", "unknown key"),
        ("SAFEPOINT_WORKER", "1", "unknown key"),
        ("SAFEPOINT_WORKER__LEASE", "soon", "'soon' is not accepted. Accepted: a number above 0"),
        ("SAFEPOINT_LANES__RECOVERY__RATE", "-3", "'-3' is not accepted. Accepted: a number at least 0"),
        ("SAFEPOINT_FLOWS", "a, 3c", "['a', '3c'] is not accepted"),
        ("SAFEPOINT_LANES__RECOVERY__WEIGHTS", "acme=0", "'0' is not accepted. Accepted: a number at least 0.001"),
        ("SAFEPOINT_LANES__RECOVERY__WEIGHTS", "acme", "'acme' is not accepted. Accepted: names, each with a number"),
        (
            "SAFEPOINT_LANES__RECOVERY__WEIGHTS__ACME",
            "3",
            "unknown key; did you mean SAFEPOINT_LANES__RECOVERY__WEIGHTS?",
        ),
        ("SAFEPOINT_DEPENDENCIES__LLM__CONNECTIONS", "3", "unknown key"),
    ],
)
def test_what_is_wrong_in_the_environment_is_named_with_the_variable(variable, value, said):
    message = problems(None, {variable: value})

    assert message.startswith(f"environment: {variable}: ")
    assert said in message


def test_everything_that_is_wrong_is_said_at_once(write):
    with pytest.raises(ConfigError) as caught:
        load(
            write('log = "xml"\nfoo = 1\n[worker]\npool = "gevent"'),
            {"SAFEPOINT_NO": "1", "SAFEPOINT_RELAY__BATCH": "0"},
        )

    assert {problem.key for problem in caught.value.problems} == {
        "log",
        "foo",
        "worker.pool",
        "SAFEPOINT_NO",
        "SAFEPOINT_RELAY__BATCH",
    }


def test_variables_of_tests_crash_points_and_kubernetes_are_no_settings():
    env = {
        "SAFEPOINT_CRASH": "commit.after",
        "SAFEPOINT_CRASH_POINTS": "1",
        "SAFEPOINT_TEST_RABBITMQ_URL": "amqp://",
        "SAFEPOINT_CI": "1",
        "SAFEPOINT_PORT": "tcp://10.0.0.1:80",
        "SAFEPOINT_SERVICE_HOST": "10.0.0.1",
        "SAFEPOINT_FLOWER_PORT_5555_TCP_ADDR": "10.0.0.1",
        "SAFEPOINT_FLOWER_SERVICE_PORT_HTTP": "5555",
    }

    assert load(env=env) == load(env={})


def test_an_empty_variable_unsets_what_may_be_unset():
    assert load(env={"SAFEPOINT_LEDGER_URL": "", "SAFEPOINT_FLOWS": ""}).ledger_url is None


SECRET = "hunter2-very-secret"


@pytest.mark.parametrize("scheme", ["postgresql", "mysql"])
def test_a_secret_is_never_printed(write, scheme):
    path = write(f'ledger_url = "{scheme}://u:{SECRET}@h/d"\nlog = "xml"\n')
    env = {"SAFEPOINT_BROKER_URL": f"http://u:{SECRET}@h", "SAFEPOINT_FLOWER__PASSWORD": SECRET}

    with pytest.raises(ConfigError) as caught:
        load(path, env)

    error = caught.value
    chain = [error, error.__cause__, error.__context__]
    assert not any(SECRET in repr(part) + str(part) for part in chain)
    assert SECRET not in str(pickle.dumps(error))


def test_settings_do_not_show_their_secrets():
    settings = load(env={"SAFEPOINT_LEDGER_URL": f"postgresql://u:{SECRET}@h/d", "SAFEPOINT_FLOWER__PASSWORD": SECRET})

    assert settings.ledger_url is not None
    assert settings.ledger_url.get_secret_value() == f"postgresql://u:{SECRET}@h/d"
    assert SECRET not in repr(settings) + str(settings) + settings.model_dump_json() + repr(settings.model_dump())


def test_settings_are_frozen():
    with pytest.raises(ValidationError):
        load(env={}).worker.lease = 3  # type: ignore[misc]  # that is the point


def test_an_error_keeps_its_problems_on_its_way_between_processes(write):
    with pytest.raises(ConfigError) as caught:
        load(write("foo = 1"), {})

    copy = pickle.loads(pickle.dumps(caught.value))
    assert (str(copy), copy.problems) == (str(caught.value), caught.value.problems)


def test_a_lane_has_weights_and_limits_of_its_own(write):
    path = write("[lanes.gpu]\norder = 'deadline'\npaused = true\n[lanes.gpu.weights]\nacme = 3\n")
    env = {"SAFEPOINT_LANES__GPU__RATE": "4", "SAFEPOINT_LANES__GPU__TENANT_IN_FLIGHT": "unlimited"}

    lane = load(path, env).lanes["gpu"]
    other = load(path, {"SAFEPOINT_LANES__GPU__WEIGHTS": "acme=2, globex=0.5"}).lanes["gpu"]

    assert lane.as_policy() == {"rate": 4.0, "weights": {"acme": 3.0}, "order": "deadline", "paused": True}
    assert other.weights == {"acme": 2.0, "globex": 0.5}


def test_a_rate_that_is_lifted_takes_the_shipped_burst_with_it(write):
    lane = load(write("[lanes.recovery]\nrate = 'unlimited'"), {}).lanes["recovery"]

    assert lane.as_policy() == {"in_flight": 100}


def test_a_dependency_is_changed_by_a_variable(write):
    path = write("[dependencies.llm]\ntokens_per_minute = 90000\n")

    llm = load(path, {"SAFEPOINT_DEPENDENCIES__LLM__TOKENS_PER_CALL": "1500"}).dependencies["llm"]

    assert (llm.tokens_per_minute, llm.tokens_per_call, llm.share_of_recovery) == (90_000, 1500, 0.25)


def test_a_breakers_table_differs_from_all_breakers_in_single_keys(write):
    path = write("[breakers]\nratio = 0.7\n[breakers.llm]\nprobes = 2\n")

    breakers = load(path, {"SAFEPOINT_BREAKERS__WINDOW": "30", "SAFEPOINT_BREAKERS__LLM__RATIO": "0.2"}).breakers

    llm, other = breakers.of("llm"), breakers.of("anything")
    assert (llm.ratio, llm.probes, llm.window) == (0.2, 2, 30.0)
    assert (other.ratio, other.probes, other.window) == (0.7, 3, 30.0)


@pytest.mark.parametrize(
    ("text", "env", "said"),
    [
        ("[breakers]\nratoi = 1", {}, "breakers.ratoi: unknown key; did you mean breakers.ratio?"),
        ("[breakers.llm]\nwindw = 1", {}, "breakers.llm.windw: unknown key; did you mean breakers.llm.window?"),
        (
            "[breakers.llm]\nratio = 2",
            {},
            "breakers.llm.ratio: 2 is not accepted. Accepted: a number above 0 at most 1",
        ),
        ("[breakers.llm]\nopen_for = 900", {}, "breakers.llm: open_for is 900 s; it must be at most max_open (300 s)"),
        ("", {"SAFEPOINT_BREAKERS__LLM__RATIO": "1"}, "SAFEPOINT_BREAKERS__LLM__RATIO: unknown key"),
    ],
)
def test_what_is_wrong_with_a_breaker_is_named(write, text, env, said):
    assert said in problems(write(text), env)


def test_what_is_wrong_with_all_breakers_is_said_once(write):
    assert problems(write("[breakers]\nratio = 7\n[breakers.llm]\nprobes = 2\n")).count("\n") == 0
