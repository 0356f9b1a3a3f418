"""mypy --strict, pyright and basedpyright over programs as users write them: what is right passes, all else does not.

In `refused.py` each complaint is expected by a comment, and a comment that expects nothing is an error itself.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import safepoint

HERE = Path(__file__).parent
ACCEPTED = [HERE / "incident.py", HERE / "agents.py", HERE / "app.py"]
REFUSED = [HERE / "refused.py"]
ROOT = Path(safepoint.__file__).parent.parent


def program(name: str) -> str:
    found = shutil.which(name, path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if found is None:
        if os.environ.get("SAFEPOINT_CI") == "1" and name != "basedpyright":
            pytest.fail(f"{name} is missing, and SAFEPOINT_CI=1 wants it")
        pytest.skip(f"{name} is missing")
    return found


def mypy(files: list[Path], folder: Path) -> str:
    environment = os.environ | {} if "site-packages" in ROOT.parts else os.environ | {"MYPYPATH": str(ROOT)}
    options = ["--strict", "--config-file=", "--follow-imports=silent", "--no-error-summary"]
    done = subprocess.run(
        [program("mypy"), *options, f"--cache-dir={folder}", f"--python-executable={sys.executable}", *map(str, files)],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr


def pyright(name: str, files: list[Path], folder: Path) -> str:
    for file in files:  # pyright reads nothing outside of its project
        if file.parent != folder:
            shutil.copy(file, folder)
    project = {
        "include": [file.name for file in files],
        "extraPaths": [str(ROOT)],
        "typeCheckingMode": "standard",  # basedpyright's own default makes warnings of most errors
        "enableTypeIgnoreComments": False,
        "reportUnnecessaryTypeIgnoreComment": "error",
    }
    (folder / "pyrightconfig.json").write_text(json.dumps(project))
    command = [program(name), "-p", str(folder), "--pythonpath", sys.executable, "--level", "error", "--outputjson"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    report = json.loads(done.stdout)
    assert report["summary"]["filesAnalyzed"] == len(files), done.stdout
    return "\n".join(
        f"{Path(one['file']).name}:{one['range']['start']['line'] + 1}: {one['message']} ({one.get('rule')})"
        for one in report["generalDiagnostics"]
        if one["severity"] == "error"
    )


@pytest.mark.slow
def test_mypy_accepts_what_is_right_and_refuses_what_is_wrong(tmp_path: Path):
    assert mypy([*ACCEPTED, *REFUSED], tmp_path) == ""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["pyright", "basedpyright"])
def test_pyright_accepts_what_is_right_and_refuses_what_is_wrong(name: str, tmp_path: Path):
    assert pyright(name, [*ACCEPTED, *REFUSED], tmp_path) == ""


@pytest.mark.slow
def test_a_forgotten_await_is_refused_by_all_three(tmp_path: Path):
    """The expectations above could be wrong in the same way as the code: here the complaint itself is read."""
    forgetful = tmp_path / "forgetful.py"
    forgetful.write_text(
        "from safepoint import flow, step\n\n\n@step\ndef work(n: int) -> int:\n    return n\n\n\n"
        "@flow\nasync def forgetful() -> None:\n    work(1)\n"
    )

    assert "forgetful.py:11: error: Value of type" in mypy([forgetful], tmp_path)
    for name in ("pyright", "basedpyright"):
        assert "forgetful.py:11:" in pyright(name, [forgetful], tmp_path)
