"""Modules that `gatewayctl` loads for help and completion."""

import subprocess
import sys

import pytest

SERVERS = {"kopf", "fastapi", "boto3", "botocore", "starlette", "uvicorn", "redis", "kubernetes"}
PROBE = (
    "import sys\n"
    "from typer.testing import CliRunner\n"
    "from gateway_cli.__main__ import app\n"
    "result = CliRunner().invoke(app, sys.argv[1:])\n"
    "assert result.exit_code == 0, result.output\n"
    "print(*sorted({name.split('.')[0] for name in sys.modules}))\n"
)


def list_loaded(*arguments: str) -> set[str]:
    command = [sys.executable, "-c", PROBE, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_help_loads_neither_clients_nor_schemas() -> None:
    assert not (SERVERS | {"aiohttp", "pydantic", "yaml", "orjson"}) & list_loaded("--help")


@pytest.mark.parametrize("noun", ["keys", "usage", "tasks"])
def test_the_help_of_a_noun_loads_no_client(noun: str) -> None:
    assert not (SERVERS | {"aiohttp"}) & list_loaded(noun, "--help")


@pytest.mark.parametrize("noun", ["apply", "install"])
def test_no_noun_loads_a_server(noun: str) -> None:
    assert not SERVERS & list_loaded(noun, "--help")
