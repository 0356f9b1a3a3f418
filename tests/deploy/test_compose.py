"""The compose file, as far as it can be checked without an engine: its form, its settings, and its commands."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from safepoint.config.settings import WorkerSettings, load

ROOT = Path(__file__).parents[2]
FILE = ROOT / "docker-compose.yml"
GIVEN = {
    "POSTGRES_PASSWORD": "pg",
    "BROKER_PASSWORD": "br",
    "FLOWER_PASSWORD": "fl",
    "SAFEPOINT_FLOWS": "incident",
    "SAFEPOINT_BROKER_URL": "redis://:br@redis:6379/0",
}


def filled_in(text: str) -> str:
    """Put the variables in as Compose does; one that is neither given nor has a default stays, and is no URL."""
    text = re.sub(r"\$\{(\w+):\?[^}]*\}", lambda match: GIVEN[match[1]], text)
    return re.sub(r"\$\{(\w+):-([^}]*)\}", lambda match: GIVEN.get(match[1], match[2]), text)


COMPOSE: dict[str, Any] = yaml.safe_load(filled_in(FILE.read_text()))
SERVICES: dict[str, Any] = COMPOSE["services"]
OURS = {name: service for name, service in SERVICES.items() if "build" in service}


def seconds(duration: str) -> float:
    number, unit = re.fullmatch(r"(\d+)(s|m)", duration).groups()  # type: ignore[union-attr]  # the schema has its form
    return int(number) * {"s": 1, "m": 60}[unit]


def test_the_file_has_the_form_of_a_compose_file():
    schema = json.loads((Path(__file__).parent / "compose.schema.json").read_text())

    jsonschema.Draft202012Validator(schema).validate(COMPOSE)


def test_compose_itself_takes_the_file(tmp_path):
    docker = shutil.which("docker")
    if (
        docker is None
        or subprocess.run([docker, "compose", "version"], capture_output=True, check=False).returncode != 0
    ):
        pytest.skip("docker compose is not installed")

    for profile in ("redis", "rabbitmq"):
        command = [docker, "compose", "--file", str(FILE), "--profile", profile, "config", "--quiet"]
        done = subprocess.run(command, env=GIVEN, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def test_every_part_is_there():
    assert set(OURS) == {"migrate", "worker-online", "worker-recovery", "worker-control", "relay", "beat", "flower"}
    assert set(SERVICES) - set(OURS) == {"postgres", "redis", "rabbitmq"}
    assert {name: SERVICES[name]["profiles"] for name in ("redis", "rabbitmq")} == {
        "redis": ["redis"],
        "rabbitmq": ["rabbitmq"],
    }


@pytest.mark.parametrize("name", [name for name in SERVICES if name != "migrate"])
def test_everything_that_stays_has_a_health_check(name):
    assert SERVICES[name]["healthcheck"]["test"]


@pytest.mark.parametrize("name", OURS)
def test_our_processes_have_no_rights_that_they_do_not_need(name):
    service = OURS[name]

    assert (service["cap_drop"], service["read_only"]) == (["ALL"], True)
    assert "no-new-privileges:true" in service["security_opt"]


def test_the_image_runs_as_an_ordinary_user():
    lines = (ROOT / "deploy" / "Dockerfile").read_text().splitlines()

    users = [line.split()[1] for line in lines if line.startswith("USER ")]
    assert users == ["10001:10001"]


def test_a_worker_is_given_the_time_that_it_gives_its_steps():
    given = WorkerSettings()

    for name in ("worker-online", "worker-recovery", "worker-control"):
        assert seconds(SERVICES[name]["stop_grace_period"]) > given.drain + given.step_grace


@pytest.mark.parametrize("name", OURS)
def test_every_setting_is_one(name):
    settings = load(env={key: str(value) for key, value in OURS[name]["environment"].items()})

    assert settings.ledger_url is not None
    assert settings.ledger_url.get_secret_value() == "postgresql://safepoint:pg@postgres:5432/safepoint"
    assert settings.log == "json"


@pytest.mark.parametrize("name", OURS)
def test_every_command_is_one_of_the_command_line(name):
    command = [sys.executable, "-m", "safepoint", *OURS[name]["command"], "--help"]

    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert "Usage:" in done.stdout


def test_the_example_names_every_variable_that_must_be_set():
    example = (ROOT / "deploy" / "env.example").read_text()

    for name in re.findall(r"\$\{(\w+):\?", FILE.read_text()):
        assert re.search(rf"^{name}=", example, re.MULTILINE), name


def test_no_port_is_open_to_the_network():
    published = [port for service in SERVICES.values() for port in service.get("ports", [])]

    assert published
    assert all(port.startswith("127.0.0.1:") for port in published)


def test_the_image_gets_every_room():
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    copied = (ROOT / "deploy" / "Dockerfile").read_text()

    for init in ROOT.glob("*/__init__.py"):
        room = init.parent.name
        assert f"!{room}" in ignored
        assert f"COPY {room} {room}\n" in copied
