"""The log: one line for each event, in two forms, and never a reason for anything else to fail."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

CODE = """
import logging
import structlog
from safepoint.cli.logs import configure

configure({form!r}, process="worker")
log = structlog.get_logger("safepoint.test")
log.debug("too.much")
log.info("half", error="\\ud800", number=2**70)
log.info("step.committed", run="r 1", step="a#1", late=False)
logging.getLogger("kombu").info("chatter")
logging.getLogger("celery.worker.strategy").info("Task a received")
logging.getLogger("celery.app.trace").error("Task a failed")
password = "secret"
try:
    1 / 0
except ZeroDivisionError:
    log.exception("execute.error", run="r2")
print("went on")
"""


def said(form: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", CODE.format(form=form)], capture_output=True, text=True, check=True)
    assert done.stdout == "went on\n"
    assert "secret" not in done.stderr
    return done.stderr.splitlines()


def test_lines_for_people() -> None:
    half, committed, failed, error, *below = said("console")

    assert "\\ud800" in half

    assert committed[26:] == (
        "Z [info     ] step.committed                 [safepoint.test] late=False process=worker run='r 1' step=a#1"
    )
    assert "Task a failed" in failed
    assert "execute.error" in error
    assert (below[0], below[-1]) == ("Traceback (most recent call last):", "ZeroDivisionError: division by zero")


def test_lines_for_programs() -> None:
    half, *lines = (json.loads(line) for line in said("json"))

    assert (half["error"], half["number"]) == ("\ud800", 2**70)

    assert [(line["event"], line["level"]) for line in lines] == [
        ("step.committed", "info"), ("Task a failed", "error"), ("execute.error", "error"),
    ]  # fmt: skip
    assert lines[0] | {"timestamp": ""} == {
        "event": "step.committed", "level": "info", "logger": "safepoint.test", "process": "worker", "timestamp": "",
        "run": "r 1", "step": "a#1", "late": False,
    }  # fmt: skip
    assert lines[2]["exception"].endswith("ZeroDivisionError: division by zero")


@pytest.mark.parametrize("form", ["console", "json"])
def test_a_log_that_nobody_reads_stops_nothing(form: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [sys.executable, "-c", CODE.format(form=form)], stdout=subprocess.PIPE, stderr=writer, check=False
        )
    finally:
        os.close(writer)

    assert done.stdout == b"went on\n"
