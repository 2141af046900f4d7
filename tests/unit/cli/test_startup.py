"""Modules that `gatewayctl` loads for help and completion."""

import subprocess
import sys

SERVERS = {"kopf", "fastapi", "boto3", "botocore", "starlette", "uvicorn", "redis", "kubernetes"}
CLIENTS = SERVERS | {"aiohttp"}
FORBIDDEN = {
    "": CLIENTS | {"pydantic", "yaml", "orjson"},
    "keys": CLIENTS,
    "usage": CLIENTS,
    "tasks": CLIENTS,
    "apply": SERVERS,
    "install": SERVERS,
}
"""Modules that the help of a noun must not load; each noun may load what those before it may."""
PROBE = (
    "import sys\n"
    "from typer.testing import CliRunner\n"
    "from gateway_cli.__main__ import app\n"
    "for noun in sys.argv[1:]:\n"
    "    result = CliRunner().invoke(app, [*noun.split(), '--help'])\n"
    "    assert result.exit_code == 0, result.output\n"
    "    print(*sorted({name.split('.')[0] for name in sys.modules}))\n"
)


def test_help_of_a_noun_loads_neither_clients_nor_servers() -> None:
    """All in one process, whose modules only become more."""
    command = [sys.executable, "-c", PROBE, *FORBIDDEN]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    loaded = zip(FORBIDDEN, done.stdout.splitlines(), strict=True)
    for noun, modules in loaded:
        assert not FORBIDDEN[noun] & set(modules.split()), noun
