"""Output without a terminal: no colour, no box, no width; and usage errors in plain lines."""

import os
import pty
import subprocess
import sys

import pytest

from tests.servers.control_plane import ROOT

COMMANDS = (["--help"], ["keys", "create", "--help"], ["keys", "create"], ["nosuch"], ["doctor"])
PLAIN: tuple[dict[str, str], ...] = (
    {},
    {"TERM": "dumb"},
    {"TERM": "xterm-256color", "COLORTERM": "truecolor"},
    {"GITHUB_ACTIONS": "true"},
)


def make_env(**changes: str) -> dict[str, str]:
    names = ("NO_COLOR", "FORCE_COLOR", "GITHUB_ACTIONS", "PY_COLORS", "TERM", "KUBECONFIG")
    env = {name: value for name, value in os.environ.items() if name not in names}
    return {**env, "KUBECONFIG": "/nonexistent", **changes}


def is_plain(text: str) -> bool:
    return bool(text) and not any(mark in text for mark in ("\x1b", "╭", "│", "─"))


def run(command: list[str], **changes: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gateway_cli", *command],
        env=make_env(**changes),
        capture_output=True,
        text=True,
        timeout=60,
    )


def run_at_terminal(command: list[str], **changes: str) -> str:
    """What the command shows where both outputs are one terminal."""
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "rb", buffering=0) as screen:
        program = subprocess.Popen(
            [sys.executable, "-m", "gateway_cli", *command],
            env=make_env(**{"TERM": "xterm", **changes}),
            stdin=subprocess.DEVNULL,
            stdout=theirs,
            stderr=theirs,
        )
        os.close(theirs)
        shown = b""
        while True:
            try:
                piece = screen.read(4096)
            except OSError:
                break
            if not piece:
                break
            shown += piece
        program.wait(60)
    return shown.decode()


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_pipe_has_plain_lines(command: list[str]) -> None:
    done = run(command)
    assert is_plain(done.stdout + done.stderr)


@pytest.mark.parametrize("changes", PLAIN, ids=str)
def test_pipe_has_plain_lines_in_every_environment(changes: dict[str, str]) -> None:
    done = run(["keys", "create"], **changes)
    assert is_plain(done.stderr)
    assert "Error: Missing argument 'ACCOUNT'." in done.stderr


@pytest.mark.parametrize("changes", [{"TERM": "dumb"}, {"NO_COLOR": "1"}], ids=str)
def test_terminal_without_colours_has_plain_lines(changes: dict[str, str]) -> None:
    assert is_plain(run_at_terminal(["keys", "create"], **changes))


def test_terminal_has_colours_and_they_can_be_forced() -> None:
    assert "\x1b[" in run_at_terminal(["keys", "create"])
    assert "\x1b[" in run(["keys", "create"], FORCE_COLOR="1", TERM="xterm").stderr


def test_lines_of_a_help_without_a_terminal_are_whole() -> None:
    shown = run(["keys", "--help"]).stdout
    assert "rotate    Give a key a new secret and print it once; limits, usage and history" in shown


@pytest.mark.parametrize("variable", ["TERM=xterm", "NO_COLOR=1 TERM=xterm"])
def test_list_of_targets_has_no_colour_in_a_pipe(variable: str) -> None:
    command = ["env", *variable.split(), "make", "--no-print-directory", "-C", str(ROOT), "help"]
    assert is_plain(subprocess.run(command, capture_output=True, text=True, timeout=60).stdout)


@pytest.mark.parametrize(
    "command",
    [["tasks", "list", "--phase", "Foo"], ["keys", "create", "acme", "--window", "Foo"]],
)
def test_refused_choice_is_said_without_words_of_python(command):
    said = run(command)
    assert said.returncode == 2
    assert f"Invalid value for '{command[-2]}': 'Foo' is not one of '" in said.stderr
