"""What is installed is what is in the repository: the wheel, with its data files, runs from anywhere."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = sorted(path.parent.name for path in ROOT.glob("*/__init__.py"))
PACKED = {"over_http": "http"}  # the room that has another name when it is installed


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy: the build leaves folders behind that an editable installation uses as well."""
    source = tmp_path_factory.mktemp("source")
    for path in (*ROOT.glob("*.py"), *(ROOT / name for name in ("pyproject.toml", "README.md", "LICENSE", "py.typed"))):
        shutil.copy(path, source)
    for room in ROOMS:
        shutil.copytree(ROOT / room, source / room, ignore=shutil.ignore_patterns("__pycache__"))
    target = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir"]
    subprocess.run(
        [*build, str(target), str(source)], check=True, env=os.environ | {"PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    )
    return next(target.glob("*.whl"))


def test_every_file_of_the_package_is_in_the_wheel(wheel):
    with zipfile.ZipFile(wheel) as archive:
        packed = {name.removeprefix("safepoint/") for name in archive.namelist() if name.startswith("safepoint/")}

    wanted = {
        str(Path(PACKED.get(room, room)) / path.relative_to(ROOT / room))
        for room in ROOMS
        for path in (ROOT / room).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert packed == wanted | {path.name for path in ROOT.glob("*.py")} | {"py.typed"}


def test_the_wheel_runs_beside_modules_named_like_our_rooms(wheel, tmp_path):
    # A project of a user, with a tasks.py and a config.py of its own at the top.
    for name in ROOMS:
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the wrong module')\n")
    installed = tmp_path / "installed"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(installed)
    program = "import safepoint.config.settings as s; print(s.load(env={}).lanes['recovery'].rate, s.__file__)"

    # -P is off: the project's folder comes first, as for `python -m celery`.
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={"PYTHONPATH": str(installed), "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.stdout.split() == ["50.0", str(installed / "safepoint" / "config" / "settings.py")], done.stderr


def test_the_room_for_http_clients_is_installed_beside_pythons_own_http(wheel, tmp_path):
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    program = (
        "import http.client, safepoint.http.webhook; from safepoint import http as ours;"
        "print(ours.not_sent(ConnectionRefusedError()), http is ours, ours.__file__)"
    )

    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.stdout.split() == ["True", "False", str(tmp_path / "safepoint" / "http" / "__init__.py")], done.stderr
