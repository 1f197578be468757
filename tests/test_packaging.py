"""What is installed is what is in the tree, and it runs with the repository out of sight."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

import minitvm

ROOT = Path(__file__).parent.parent
PYPROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")
CI_RUN = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
FOLDERS = ("minitvm", "codegen", "runtime")
MAPPED = ("codegen", "runtime")  # at the top of the repository, installed inside minitvm


def _setting(name: str) -> Any:
    """A value of pyproject.toml that Python would write the same way (3.10 has no tomllib)."""
    found = re.search(rf"^{name} = (\[[^\]]*\]|\"[^\"\n]*\")$", PYPROJECT, re.M)
    assert found is not None, name
    return ast.literal_eval(found[1])


def _sources() -> list[str]:
    """The modules of the tree, by their place in an installed package."""
    found = []
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*.py"):
            inside = path.relative_to(ROOT)
            if inside.parts[0] == "minitvm" and inside.parts[1] in MAPPED:
                continue  # a link of the checkout
            found.append(inside.as_posix() if folder == "minitvm" else f"minitvm/{inside}")
    return sorted(found)


def _data() -> list[str]:
    """What a package has besides modules."""
    headers = (ROOT / "minitvm" / "include").rglob("*")
    files = [path.relative_to(ROOT).as_posix() for path in headers if path.is_file()]
    return ["minitvm/py.typed", *files]


def _python(*arguments: str, cwd: Path, path: Path | None = None) -> str:
    """What an interpreter prints that sees `path`, and of the repository nothing."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if path is not None:
        env["PYTHONPATH"] = str(path)
    done = subprocess.run(
        [sys.executable, *arguments], cwd=cwd, env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


# -- The settings ---------------------------------------------------------------------------------


def test_every_package_is_listed() -> None:
    folders = {str(Path(source).parent) for source in _sources()}
    with_init = {str(Path(s).parent) for s in _sources() if s.endswith("/__init__.py")}
    assert folders == with_init, "a folder of modules without __init__.py"
    assert sorted(_setting("packages")) == sorted(f.replace("/", ".") for f in with_init)


@pytest.mark.parametrize("name", MAPPED)
def test_the_checkout_shows_the_same_tree(name: str) -> None:
    link = ROOT / "minitvm" / name
    assert link.is_symlink()
    assert link.readlink() == Path("..") / name


def test_the_version_is_said_once() -> None:
    assert _setting("version") == minitvm.__version__


def test_two_dependencies() -> None:
    names = [re.split("[<>=]", each)[0] for each in _setting("dependencies")]
    assert names == ["numpy", "llvmlite"]


def test_readme_and_ci_say_the_same() -> None:
    (command,) = re.findall(r"^test_command='(.*)'$", CI_RUN, re.M)
    assert f"\n{command}\n" in README
    assert '\neval "$test_command"' in CI_RUN
    assert "\npip install -e . && python examples/quickstart.py\n" in README


# -- The import -----------------------------------------------------------------------------------


def test_the_import_is_light(tmp_path: Path) -> None:
    code = (
        "import sys, minitvm\n"
        "heavy = {'torch', 'ml_dtypes', 'matplotlib', 'numba', 'pytest', 'hypothesis', 'scipy'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    assert _python("-c", code, cwd=tmp_path, path=ROOT) == "[]\n"


# -- The wheel ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of the sdist of the tree, which stays as it is."""
    pytest.importorskip("build", reason="of the extra [test]")
    tree = tmp_path_factory.mktemp("tree")
    for folder in FOLDERS:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / folder, tree / folder, symlinks=True, ignore=ignored)
    for file in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / file, tree)
    _python("-m", "build", "--no-isolation", "--outdir", "dist", ".", cwd=tree)
    (made,) = (tree / "dist").glob("*.whl")
    return made


def test_the_wheel_has_every_module(wheel: Path) -> None:
    assert wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if ".dist-info/" not in name]
    assert sorted(names) == sorted([*_sources(), *_data()])


def test_the_wheel_runs_by_itself(wheel: Path, tmp_path: Path) -> None:
    target, elsewhere = tmp_path / "installed", tmp_path / "elsewhere"
    elsewhere.mkdir()
    pip = ("-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-compile")
    _python(*pip, "--disable-pip-version-check", "--target", str(target), str(wheel), cwd=tmp_path)
    script = shutil.copy(ROOT / "examples" / "quickstart.py", elsewhere)
    assert "equal to x @ y" in _python(str(script), cwd=elsewhere, path=target)
    code = (
        "import sys, minitvm\n"
        "for name, module in sorted(sys.modules.items()):\n"
        "    if name.split('.')[0] in ('minitvm', 'codegen', 'runtime'):\n"
        "        print(module.__file__)\n"
    )
    files = _python("-c", code, cwd=elsewhere, path=target).splitlines()
    assert len(files) > 40
    assert all(Path(file).is_relative_to(target) for file in files)
