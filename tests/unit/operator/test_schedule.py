"""Sweeps go on after a failure, and what is merely away is no error."""

import asyncio
from itertools import chain, repeat

import pytest
from structlog.testing import capture_logs

from gateway_core.kube.errors import KubernetesUnavailable
from gateway_core.redis.link import CountersUnavailable
from gateway_core.storage.objects import StoreUnavailable
from gateway_operator.schedule import Schedule, Sweep
from tests.fakes.clock import in_virtual_time


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (KubernetesUnavailable("away"), ("step failed", "warning")),
        (StoreUnavailable("away"), ("step failed", "warning")),
        (CountersUnavailable("away"), ("step failed", "warning")),
        (KeyError("odd"), ("unexpected failure", "error")),
    ],
)
@in_virtual_time
async def test_failed_sweep_is_logged_and_repeated(error: Exception, told: tuple[str, str]) -> None:
    failures = chain([error], repeat(None))
    noted: list[str] = []

    async def sweep() -> int:
        failure = next(failures)
        if failure is not None:
            raise failure
        return 0

    schedule = Schedule(noted.append, Sweep("odds", sweep, 60.0))
    with capture_logs() as logs:
        running = asyncio.create_task(schedule.run())
        await asyncio.sleep(30.0)
        assert noted == ["odds"]
        await asyncio.sleep(60.0)
        running.cancel()
    assert noted == ["odds", "odds"]
    assert [(entry["event"], entry["log_level"]) for entry in logs] == [told]
