"""What is in the wheel and the source distribution, and that README.md's commands are those CI runs."""

from __future__ import annotations

import configparser
import email
import io
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
NEEDED_TO_BUILD = ("pyproject.toml", "setup.py", "README.md", "LICENSE", "deviceguard")

pytest.importorskip("setuptools", minversion="77", reason="building needs setuptools")


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> pathlib.Path:
    """A folder with the wheel and the sdist, built from a copy of the checkout without any network."""
    copy, target = tmp_path_factory.mktemp("checkout"), tmp_path_factory.mktemp("dist")
    for name in NEEDED_TO_BUILD:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, copy / name)
    for kind in ("wheel", "sdist"):
        build = f"import sys, setuptools.build_meta as build; build.build_{kind}(sys.argv[1])"
        command = [sys.executable, "-c", build, str(target)]
        subprocess.run(command, cwd=copy, check=True, capture_output=True, timeout=120)
    return target


@pytest.fixture(scope="module")
def wheel(built) -> zipfile.ZipFile:
    [path] = built.glob("*.whl")
    return zipfile.ZipFile(path)


def sources() -> set[str]:
    return {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "deviceguard").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def read(wheel: zipfile.ZipFile, name: str) -> str:
    [path] = [path for path in wheel.namelist() if path.endswith(f".dist-info/{name}")]
    return wheel.read(path).decode()


def test_wheel_holds_the_whole_package_and_nothing_else(wheel):
    held = {name for name in wheel.namelist() if ".dist-info/" not in name}

    assert held == sources()
    assert "deviceguard/py.typed" in held


def test_wheel_is_pure(built):
    [path] = built.glob("*.whl")

    assert path.name.endswith("-py3-none-any.whl")


def test_sdist_can_be_built_from(built):
    [path] = built.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        held = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}

    assert sources() <= held
    assert {"pyproject.toml", "README.md", "LICENSE"} <= held


def test_metadata(wheel):
    metadata = email.message_from_string(read(wheel, "METADATA"))

    assert metadata["Name"] == "deviceguard"
    assert metadata["Requires-Python"] == ">=3.10"
    assert metadata["License-Expression"] == "Apache-2.0"
    assert any(re.match(r"torch\s*>=\s*2\.9", requirement) for requirement in metadata.get_all("Requires-Dist"))
    assert "# deviceguard" in metadata.get_payload()


def test_version_stands_in_one_value(wheel):
    import deviceguard

    assert email.message_from_string(read(wheel, "METADATA"))["Version"] == deviceguard.__version__
    assert f"## [{deviceguard.__version__}]" in (ROOT / "CHANGELOG.md").read_text()


def test_entry_points_lead_somewhere(wheel):
    import importlib

    declared = configparser.ConfigParser(delimiters=("=",))
    declared.read_file(io.StringIO(read(wheel, "entry_points.txt")))
    assert declared["console_scripts"]["deviceguard"]
    for section in declared.sections():
        for target in declared[section].values():
            module, _, name = target.partition(":")
            loaded = importlib.import_module(module)
            assert not name or callable(getattr(loaded, name)), target


def test_readme_has_two_commands_and_ci_runs_them():
    commands = re.findall(r"^    (.*\.venv.*)$", (ROOT / "README.md").read_text(), re.MULTILINE)
    ci = (ROOT / ".ci" / "run").read_text()
    job, test = commands

    assert "deviceguard run --simulate cuda examples/fashion_fcnn.py" in job
    assert "deviceguard run --simulate cuda" in ci
    assert "examples/fashion_fcnn.py" in ci
    assert test in ci


def test_ci_script_may_be_executed():
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o111
