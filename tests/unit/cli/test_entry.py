"""The entry point: its version, and completion in a shell."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gateway_cli.__main__ import app, main
from gateway_core.api.key import mint_key
from gateway_core.api.resource import RELEASE


def test_version_names_release_and_api() -> None:
    said = CliRunner().invoke(app, ["--version"])
    assert said.exit_code == 0
    assert said.stdout.startswith(f"gatewayctl {RELEASE} (modelgateway.dev/v1alpha1, Python ")


def test_unknown_command_is_answered_with_all_commands() -> None:
    said = CliRunner().invoke(app, ["account"])
    assert said.exit_code == 2
    text = " ".join(said.output.split())
    assert "No such command 'account'. Commands: accounts, users, keys," in text


@pytest.mark.parametrize(
    ("group", "commands"),
    [
        ("files", "upload"),
        ("record", "save, restore"),
        ("keys limit", "set, clear"),
        ("accounts webhook-secret", "show, rotate"),
        ("local", "up"),
    ],
)
def test_unknown_command_of_a_group_is_answered_with_its_commands(
    group: str, commands: str
) -> None:
    said = CliRunner().invoke(app, [*group.split(), "foo"])
    assert said.exit_code == 2
    text = " ".join(said.output.split())
    assert "No such command 'foo'. Commands: " in text
    assert commands in text.partition("Commands: ")[2]


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


def test_interrupted_question_ends_the_command_at_once() -> None:
    """At the first Ctrl-C, though an event loop runs below the question."""
    key = mint_key("Standard").plaintext
    env = {**os.environ, "GATEWAY_BASE_URL": "http://127.0.0.1:9", "GATEWAY_API_KEY": key}
    command = [sys.executable, "-m", "gateway_cli", "files", "delete", "file-a"]
    with subprocess.Popen(
        command,
        env=env,
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # a shell starts what it runs in the background with SIGINT ignored
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        assert process.stderr is not None
        assert process.stderr.read(6) == b"Delete"
        process.send_signal(signal.SIGINT)
        # its standard input stays open
        assert process.wait(timeout=30) in (1, 130)
        assert b"Traceback" not in process.stderr.read()


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
