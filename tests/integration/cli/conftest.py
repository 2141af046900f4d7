"""gatewayctl as one runs it who has read `gateway.env`."""

import asyncio

import pytest
from typer.testing import CliRunner

from gateway_cli.__main__ import app
from tests.cli.conftest import Said


@pytest.fixture
def gatewayctl(world, client):
    """Runs commands with the key of the test's account; any exit code where `code` is None."""
    runner = CliRunner(env={**world.env, "GATEWAY_API_KEY": client.key})

    async def run(*arguments, code=0):
        # a command has an event loop of its own
        done = await asyncio.to_thread(runner.invoke, app, [str(word) for word in arguments])
        assert code in (None, done.exit_code), (done.output, done.exception)
        assert client.key not in done.output
        return Said(done.exit_code, done.stdout, done.stderr)

    return run
