"""Output of `make up`: commands that work where they are pasted."""

import shutil
import sys
from pathlib import Path

import pytest

from gateway_cli.local.demo import name_program


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A gatewayctl in the folder of the interpreter, and on no PATH."""
    program = tmp_path / ".venv" / "bin" / "gatewayctl"
    program.parent.mkdir(parents=True)
    program.touch(mode=0o755)
    monkeypatch.setattr(sys, "executable", str(program.parent / "python"))
    monkeypatch.setattr(shutil, "which", lambda name: None)
    return program


def test_command_off_the_path_is_named_from_the_current_folder(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert name_program() == ".venv/bin/gatewayctl"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert name_program() == str(program)


@pytest.mark.usefixtures("program")
def test_command_on_the_path_has_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    assert name_program() == "gatewayctl"
