"""Other programs, called by the tools."""

import io
import subprocess
import tarfile
from collections.abc import Mapping
from pathlib import Path


class CommandFailed(Exception):
    """A program failed or is not there; the text says what it printed, or what to do."""


def run_command(
    *command: str, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> str:
    """Return what the program prints. CommandFailed with its errors."""
    try:
        done = subprocess.run(  # noqa: S603 - commands of the tools
            command, env=env, cwd=cwd, capture_output=True, text=True, check=False
        )
    except FileNotFoundError as error:
        raise CommandFailed(f"there is no `{command[0]}` in PATH") from error
    if done.returncode:
        said = (done.stderr or done.stdout).strip()[-3000:]
        raise CommandFailed(f"{' '.join(command[:4])} fails: {said}")
    return done.stdout


def export_revision(checkout: Path, revision: str, folder: Path) -> None:
    """Write the files of a git revision into a folder. CommandFailed."""
    command = ("git", "-C", str(checkout), "archive", "--format=tar", revision)
    done = subprocess.run(command, capture_output=True, check=False)  # noqa: S603 - fixed
    if done.returncode:
        raise CommandFailed(f"git has no {revision}: {done.stderr.decode().strip()}")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extractall(folder, filter="data")
