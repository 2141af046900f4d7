"""The entry point: its version, and completion in a shell."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gateway_cli.__main__ import app, main
from gateway_core.api.resource import RELEASE


def test_version_names_release_and_api() -> None:
    said = CliRunner().invoke(app, ["--version"])
    assert said.exit_code == 0
    assert said.stdout.startswith(f"gatewayctl {RELEASE} (modelgateway.dev/v1alpha1, Python ")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish", "powershell"])
def test_completion_of_each_shell_calls_the_program(shell: str) -> None:
    said = CliRunner().invoke(app, ["completion", shell])
    assert said.exit_code == 0
    assert "_GATEWAYCTL_COMPLETE" in said.stdout


def test_bash_completes_nouns(tmp_path: Path) -> None:
    """With the program of this interpreter on the PATH."""
    program = tmp_path / "gatewayctl"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m gateway_cli "$@"\n')
    program.chmod(0o755)
    script = (
        "source <(gatewayctl completion bash); COMP_WORDS=(gatewayctl prov); COMP_CWORD=1;"
        ' _gatewayctl_completion gatewayctl; echo "${COMPREPLY[@]}"'
    )
    bash = shutil.which("bash")
    assert bash
    env = {
        **os.environ,
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "PYTHONPATH": ":".join(sys.path),
    }
    done = subprocess.run([bash, "-c", script], env=env, capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["providers"], done.stderr


@pytest.mark.parametrize("debug", ["", "1"])
def test_unexpected_error_is_a_line_and_a_traceback_on_demand(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], debug: str
) -> None:
    def fail(**_: str) -> None:
        raise KeyError("spec")

    monkeypatch.setattr("gateway_cli.__main__.app", fail)
    monkeypatch.setenv("GATEWAYCTL_DEBUG", debug)
    with pytest.raises(KeyError if debug else SystemExit):
        main()
    assert debug or "KeyError: 'spec'" in capsys.readouterr().err
