"""Rules of the house that no linter knows: CONTRIBUTING.md says them, this holds them."""

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from gateway_apiserver.failpoints import NAMES as API_NAMES
from gateway_core.api.resource import RELEASE
from gateway_operator.failpoints import NAMES as OPERATOR_NAMES

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("core", "apiserver", "operator", "cli", "simulator")
MOST_LINES = 400
SKIPPED = {".venv", ".git", ".local", "__pycache__", "node_modules"}


def list_modules(*folders: str) -> list[Path]:
    """All Python modules of the folders."""
    found = (path for folder in folders for path in (ROOT / folder).rglob("*.py"))
    return sorted(path for path in found if not SKIPPED & set(path.parts))


def name_path(path: Path) -> str:
    return str(path.relative_to(ROOT))


MODULES = list_modules(*ROOMS)
EVERYTHING = list_modules(*ROOMS, "tests", "tools")


def read_imports(path: Path) -> Iterator[ast.ImportFrom]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            yield node


def test_the_rooms_are_there() -> None:
    assert len(MODULES) > 100
    for room in ROOMS:
        assert (ROOT / room / f"gateway_{room}").is_dir()


MACHINE_CLOCKS = {"time.time", "time.time_ns", "datetime.now", "datetime.utcnow", "datetime.today"}
MACHINE_TIMES = {
    "core/gateway_core/kube/clock.py": "follows the API server's clock from it",
    "core/gateway_core/storage/directory_files.py": "compares it with times of files",
    "core/gateway_core/observability/logs.py": "dates lines of the log",
}


def test_times_of_the_record_are_judged_by_its_clock() -> None:
    """The clock of a machine may be wrong: `gateway_core.kube.clock.CLOCK` is not."""
    users = {
        name_path(path)
        for path in list_modules("core", "apiserver", "operator")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and ast.unparse(node) in MACHINE_CLOCKS
    }
    assert users == set(MACHINE_TIMES)


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_is_no_package(room: str) -> None:
    """`operator/__init__.py` would shadow the standard library's module."""
    assert not (ROOT / room / "__init__.py").exists()


def test_no_module_is_too_long() -> None:
    long = {name_path(path): len(path.read_text().splitlines()) for path in MODULES}
    assert {name: lines for name, lines in long.items() if lines > MOST_LINES} == {}


def test_most_modules_are_short() -> None:
    lengths = sorted(len(path.read_text().splitlines()) for path in MODULES)
    assert lengths[len(lengths) // 2] < 150


@pytest.mark.parametrize("path", MODULES, ids=name_path)
def test_a_module_says_what_it_is_for(path: Path) -> None:
    text = ast.get_docstring(ast.parse(path.read_text()))
    assert text, "has no docstring"
    assert text.rstrip().endswith((".", ":", "`", ")")) or "\n" in text


@pytest.mark.parametrize("path", MODULES, ids=name_path)
def test_every_folder_of_modules_is_a_package(path: Path) -> None:
    assert (path.parent / "__init__.py").exists()


def test_imports_are_absolute() -> None:
    relative = [
        f"{name_path(path)}:{node.lineno}"
        for path in EVERYTHING
        for node in read_imports(path)
        if node.level
    ]
    assert relative == []


def test_modules_are_nouns_of_their_own() -> None:
    vague = {"utils", "util", "helpers", "helper", "common", "misc", "manager", "base"}
    assert [name_path(path) for path in MODULES if path.stem in vague] == []


def test_product_code_knows_no_tests() -> None:
    found = [
        name_path(path)
        for path in MODULES
        for node in read_imports(path)
        if (node.module or "").split(".")[0] == "tests"
    ]
    assert found == []


def test_the_readme_opens_with_two_commands_that_there_are() -> None:
    readme = (ROOT / "README.md").read_text()
    makefile = (ROOT / "Makefile").read_text()
    opening = readme[:1500]
    for target in ("demo", "test"):
        assert f"make {target}" in opening
        assert re.search(rf"^{target}:", makefile, re.M)


def test_every_make_target_that_is_written_of_is_there() -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.M))
    for path in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / ".ci" / "run"):
        for words in re.findall(r"(?:^|`)\s*make ([a-z][a-z0-9 -]*)", path.read_text(), re.M):
            named = [word for word in words.split() if not word.startswith("-")]
            assert set(named[:1]) <= targets, f"{path.name}: make {words}"


def find_failpoints(room: str) -> set[str]:
    text = "\n".join(path.read_text() for path in list_modules(room))
    return set(re.findall(r'failpoints\.reach\("([^"]+)"\)', text))


@pytest.mark.parametrize(
    ("room", "names"), [("operator", OPERATOR_NAMES), ("apiserver", API_NAMES)]
)
def test_failpoints_are_those_that_are_reached_somewhere(room: str, names: tuple[str, ...]) -> None:
    in_room, in_core = find_failpoints(room), find_failpoints("core")
    assert in_room <= set(names) <= in_room | in_core
    assert in_core <= {*API_NAMES, *OPERATOR_NAMES}


def test_nothing_names_a_machine() -> None:
    """Paths and hosts of whoever wrote it have no place in what others check out."""
    suffixes = {".py", ".md", ".yaml", ".toml", ".sh"}
    places = re.compile(r"/(?:work|root)/|/home/[a-z]")
    for folder in (*ROOMS, "tests", "tools", "docs", "examples", "crds"):
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in suffixes and not SKIPPED & set(path.parts):
                for number, line in enumerate(path.read_text().splitlines(), 1):
                    if path != Path(__file__).resolve():
                        assert not places.search(line), (
                            f"{name_path(path)}:{number}: {line.strip()}"
                        )


def test_code_package_and_chart_are_of_one_release() -> None:
    package = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    chart = yaml.safe_load((ROOT / "charts/model-gateway/Chart.yaml").read_text())
    assert {RELEASE, package, chart["version"], chart["appVersion"]} == {RELEASE}


@pytest.mark.parametrize("lock", ["dev", "runtime"])
def test_no_other_event_loop_is_installed(lock: str) -> None:
    """Decision 32: uvloop closes descriptors of others where a TLS handshake is reset."""
    names = re.findall(r"^([\w.-]+)==", (ROOT / "requirements" / f"{lock}.txt").read_text(), re.M)
    assert "aiohttp" in names
    assert "uvloop" not in names
