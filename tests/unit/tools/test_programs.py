"""Programs for tests are found in order, and built once for all checkouts."""

import stat
import sys
import threading

import pytest
from tools import programs

GO = """#!/bin/sh
echo "$PWD $*" >> "$CALLS"
[ -z "$GO_FAILS" ] || { echo "no such module" >&2; exit 1; }
while [ "$1" != -o ]; do shift; done
sleep 0.2
echo built > "$2"
"""


@pytest.fixture
def calls(tmp_path, monkeypatch):
    """An empty cache, a PATH with a `go` that writes down its calls, and those calls."""
    folder = tmp_path / "bin"
    folder.mkdir()
    _put(folder / "go", GO)
    log = tmp_path / "calls"
    log.touch()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setenv("CALLS", str(log))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("HELM", "HELM_UNITTEST", "GO_FAILS"):
        monkeypatch.delenv(name, raising=False)
    return log


def _put(path, text):
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def test_looking_for_a_program_does_not_build_it(calls):
    with pytest.raises(programs.ProgramMissingError, match="make programs-full"):
        programs.find_program("helm-unittest")
    assert calls.read_text() == ""


def test_program_is_built_where_its_pins_are_and_then_found(calls, capsys):
    path = programs.ensure_program("helm-unittest")
    assert path.read_text() == "built\n"
    assert programs.find_program("helm-unittest") == path
    assert programs.ensure_program("helm-unittest") == path
    [call] = calls.read_text().splitlines()
    assert call.startswith(f"{programs.TOOLS / 'helm'} build ")
    assert call.endswith("github.com/helm-unittest/helm-unittest/cmd/helm-unittest")
    assert "Building helm-unittest" in capsys.readouterr().out


def test_two_checkouts_build_once(calls):
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(programs.ensure_program("helm")))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1
    assert len(calls.read_text().splitlines()) == 1


def test_another_pin_is_another_program(calls, tmp_path, monkeypatch):
    first = programs.ensure_program("helm")
    tools = tmp_path / "tools"
    (tools / "helm").mkdir(parents=True)
    (tools / "helm" / "go.mod").write_text("module other\n")
    (tools / "helm" / "go.sum").touch()
    monkeypatch.setattr(programs, "TOOLS", tools)
    assert programs.ensure_program("helm") != first


def test_program_is_taken_from_variable_then_path_then_cache(calls, tmp_path, monkeypatch):
    programs.ensure_program("helm")
    _put(tmp_path / "bin" / "helm", "#!/bin/sh\n")
    assert programs.find_program("helm") == tmp_path / "bin" / "helm"
    monkeypatch.setenv("HELM", "/elsewhere/helm")
    assert str(programs.find_program("helm")) == "/elsewhere/helm"


def test_pinned_program_is_not_taken_from_the_path(calls, tmp_path):
    _put(tmp_path / "bin" / "helm-unittest", "#!/bin/sh\n")
    with pytest.raises(programs.ProgramMissingError):
        programs.find_program("helm-unittest")


def test_failed_build_says_why_and_leaves_nothing(calls, monkeypatch):
    monkeypatch.setenv("GO_FAILS", "yes")
    with pytest.raises(programs.ProgramMissingError, match="no such module"):
        programs.ensure_program("helm")
    with pytest.raises(programs.ProgramMissingError):
        programs.find_program("helm")


def test_error_without_a_toolchain_names_the_remedy(calls, tmp_path, monkeypatch):
    (tmp_path / "bin" / "go").unlink()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with pytest.raises(programs.ProgramMissingError, match="no `go` in PATH"):
        programs.ensure_program("helm")


NPM = """#!/bin/sh
echo "$PWD $*" >> "$CALLS"
[ -z "$NPM_FAILS" ] || { echo "no such package" >&2; exit 1; }
mkdir node_modules
"""


def test_packages_of_npm_are_installed_from_their_lock_file_once(calls, tmp_path, monkeypatch):
    with pytest.raises(programs.ProgramMissingError, match="make programs-full"):
        programs.find_program("node-sdks")
    _put(tmp_path / "bin" / "npm", NPM)
    monkeypatch.setenv("NPM_FAILS", "1")
    with pytest.raises(programs.ProgramMissingError, match="no such package"):
        programs.ensure_program("node-sdks")
    monkeypatch.delenv("NPM_FAILS")
    path = programs.ensure_program("node-sdks")
    assert programs.ensure_program("node-sdks") == path == programs.find_program("node-sdks")
    assert {file.name for file in path.iterdir()} == {
        "node_modules",
        "package.json",
        "package-lock.json",
    }
    assert len(calls.read_text().splitlines()) == 2


def test_packages_of_pypi_are_installed_with_their_hashes_once(calls, tmp_path, monkeypatch):
    commands = []
    monkeypatch.setattr(programs, "run_command", lambda *command, cwd: commands.append(command))
    path = programs.ensure_program("agent-packages")
    assert programs.ensure_program("agent-packages") == path
    assert sys.implementation.cache_tag in path.name
    [command] = commands
    assert command[:4] == (sys.executable, "-m", "pip", "install")
    assert "--require-hashes" in command
    assert [file.name for file in path.iterdir()] == ["requirements.txt"]
