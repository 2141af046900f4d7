"""A local run for pictures: in a folder of its own, on free ports, ended with all it wrote."""

import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from gateway_cli.local.config import PORT_NAMES, LocalConfig, LocalRunError, Ports, check_ports
from gateway_cli.local.run import LocalRun
from gateway_cli.progress import Reporter

ROOT = Path(__file__).resolve().parents[2]
_PORT_BASE = 22_000
_BLOCKS = 500


@asynccontextmanager
async def run_gateway(
    extra_env: Mapping[str, Mapping[str, str]] | None = None,
) -> AsyncIterator[LocalRun]:
    """All processes while the body runs; `extra_env` is further environment by process."""
    with tempfile.TemporaryDirectory(prefix="gateway-pictures-") as name:
        config = LocalConfig(
            root=ROOT,
            directory=Path(name),
            ports=choose_ports(),
            sync_to_disk=False,
            extra_env=extra_env or {},
        )
        run = LocalRun(config, Reporter.quiet())
        try:
            await run.start()
            yield run
        finally:
            await run.stop()


def choose_ports() -> Ports:
    """The usual ports, or where one of them has a listener a block of free ones.

    Raises:
        LocalRunError: none is free.
    """
    step = len(PORT_NAMES) + 3
    for base in (None, *range(_PORT_BASE, _PORT_BASE + _BLOCKS * step, step)):
        ports = Ports() if base is None else Ports.block(base)
        try:
            check_ports(ports, PORT_NAMES)
        except LocalRunError:
            continue
        return ports
    raise LocalRunError("no block of ports is free")
