"""The namespace or CRDs are deleted: jobs stop, and every finalizer is removed in bounded time."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from structlog.testing import capture_logs

from gateway_core.api.ids import REMAINS_FINALIZER, STORED_FINALIZER, TASK_FINALIZER
from gateway_core.kube.errors import KubernetesUnavailable, ObjectNotFound, RequestForbidden
from gateway_operator.termination import KINDS, OWNERS, PATIENCE_SECONDS, Termination
from tests.fakes.clock import in_virtual_time
from tests.fakes.kubernetes import FakeKubernetes, Fault
from tests.fakes.upstream import FakeUpstream
from tests.unit.operator import file_harness
from tests.unit.operator.batch_harness import BATCHES, BatchSimulation, make_lines
from tests.unit.operator.environment import TASKS
from tests.unit.operator.file_harness import FILES, UPLOADS
from tests.unit.operator.harness import QUOTE, Simulation

USAGES = "gatewayusages"
SOON = PATIENCE_SECONDS + 70
"""The patience, and the longest back-off of the work queue."""


async def end_namespace(kube: Any) -> None:
    kube.is_terminating = True


async def end_crds(kube: Any) -> None:
    kube.terminating = frozenset({*KINDS, USAGES})
    for plural in KINDS:
        await kube.delete_all(plural)


BOTH_WAYS = pytest.mark.parametrize("end", [end_namespace, end_crds], ids=["namespace", "crds"])
End = Callable[[Any], Any]


@asynccontextmanager
async def following(termination: Termination, *controllers: Any) -> AsyncIterator[None]:
    """Looks at what terminates, as the operator does all the time."""
    termination.subscribe(*controllers)
    looking = asyncio.create_task(termination.run())
    try:
        yield
    finally:
        looking.cancel()
        with suppress(asyncio.CancelledError):
            await looking


def is_empty(kube: Any, *plurals: str) -> bool:
    return not any(kube.list_objects(plural) for plural in plurals)


def list_left(logs: list[Any]) -> set[str]:
    return {entry["left"] for entry in logs if entry["event"] == "left behind at the removal"}


@BOTH_WAYS
@in_virtual_time
async def test_running_jobs_are_stopped_and_their_tasks_released(end: End) -> None:
    sim = await Simulation.start(FakeUpstream(seconds=1000))
    operator = sim.running
    names = [await sim.admit(deadline=5000) for _ in range(3)]
    await sim.wait(lambda: all(sim.status(name).get("phase") == "Running" for name in names))
    # in a hostile order: what the tasks need is gone first
    sim.kube.remove("gatewayproviders", "simulated")
    sim.kube.secrets.clear()
    async with following(operator.context.termination, operator.controller):
        await end(sim.kube)
        await sim.wait(lambda: is_empty(sim.kube, TASKS), seconds=10)
    assert all(job.cancelled for job in sim.upstream.jobs)
    await sim.check_archive()


@BOTH_WAYS
@in_virtual_time
async def test_charge_that_no_usage_takes_is_logged_and_archived(end: End) -> None:
    sim = await Simulation.start()
    operator = sim.running
    # closing waits for the usage object until the kinds terminate
    sim.kube.terminating = frozenset({USAGES})
    name = await sim.admit()
    await sim.wait(lambda: sim.is_ended(name))
    await sim.pass_time(30)
    assert TASK_FINALIZER in sim.history[name][-1]["metadata"]["finalizers"]
    with capture_logs() as logs:
        async with following(operator.context.termination, operator.controller):
            await end(sim.kube)
            await sim.wait(lambda: is_empty(sim.kube, TASKS), seconds=10)
    [left] = list_left(logs)
    assert f"{QUOTE} micro-dollars" in left
    await sim.check_archive()


@BOTH_WAYS
@in_virtual_time
async def test_tasks_wait_for_a_lost_store_no_longer_than_the_patience(end: End) -> None:
    sim = await Simulation.start(FakeUpstream(seconds=1000))
    operator = sim.running
    name = await sim.run(deadline=5000)
    sim.store.away = sim.counters.away = True
    with capture_logs() as logs:
        async with following(operator.context.termination, operator.controller):
            await end(sim.kube)
            await sim.pass_time(PATIENCE_SECONDS - 5)
            assert sim.is_there(name)
            await sim.wait(lambda: is_empty(sim.kube, TASKS), seconds=SOON)
    assert sim.upstream.jobs[0].cancelled
    assert "its archive" in list_left(logs)


@BOTH_WAYS
@in_virtual_time
async def test_task_that_has_not_begun_is_released_while_store_and_counters_are_away(
    end: End,
) -> None:
    # of each task that is new within its first minute, an operator asks the archive
    sim = await Simulation.start()
    operator = sim.running
    sim.store.away = True
    name = await sim.admit(deadline=5000)
    sim.counters.away = True
    async with following(operator.context.termination, operator.controller):
        await end(sim.kube)
        await sim.wait(lambda: is_empty(sim.kube, TASKS), seconds=SOON)
    assert sim.is_ended(name)
    assert not sim.upstream.jobs


@in_virtual_time
async def test_single_deleted_task_waits_for_the_store() -> None:
    sim = await Simulation.start(FakeUpstream(seconds=1000))
    operator = sim.running
    name = await sim.run(deadline=5000)
    sim.store.away = True
    async with following(operator.context.termination, operator.controller):
        await sim.kube.delete(TASKS, name)
        await sim.pass_time(600)
        assert sim.is_there(name)
        sim.store.away = False
        await sim.finish(name, seconds=100)


@BOTH_WAYS
@pytest.mark.parametrize("away", ["nothing", "store", "counters"])
@in_virtual_time
async def test_running_batches_end_without_files_and_are_released(end: End, away: str) -> None:
    sim = BatchSimulation()
    await sim.boot()
    operator = sim.running
    name = await sim.submit(make_lines(500))
    await sim.wait(lambda: sim.batch_status(name).get("phase") == "InProgress")
    sim.store.away, sim.counters.away = away == "store", away == "counters"
    with capture_logs() as logs:
        async with following(operator.context.termination, operator.batches):
            await end(sim.kube)
            await sim.wait(lambda: is_empty(sim.kube, BATCHES), seconds=SOON)
    status = sim.batch_status(name)
    assert status["phase"] == "Cancelled"
    assert any(str(status["chargedMicros"]) in left for left in list_left(logs))


@BOTH_WAYS
@pytest.mark.parametrize("away", [False, True], ids=["store there", "store away"])
@in_virtual_time
async def test_files_and_uploads_are_released(end: End, away: bool) -> None:
    sim = await file_harness.Simulation.start()
    controllers = sim.controllers
    assert controllers is not None
    await sim.add_file(b"some bytes")
    await sim.add_file(b"{}", purpose="batch")
    await sim.add_upload(b"a part")
    # a completed Upload whose File cannot be created any more
    sim.kube.terminating = frozenset({FILES})
    upload = await sim.add_upload(b"another")
    await sim.complete(upload, *sim.list_parts(upload))
    sim.store.away = away
    termination = controllers.storage.context.termination
    async with following(termination, controllers.files, controllers.uploads):
        await end(sim.kube)
        await sim.wait(lambda: is_empty(sim.kube, FILES, UPLOADS), seconds=SOON)
    assert bool(sim.store.contents) == away


@in_virtual_time
async def test_batch_file_is_released_once_the_crd_of_batches_is_gone() -> None:
    sim = await file_harness.Simulation.start()
    name = await sim.add_file(b"{}", purpose="batch")
    await sim.wait(lambda: sim.ready(name) == ("True", "Available"))
    await sim.kube.delete(FILES, name)
    await asyncio.sleep(50)
    assert STORED_FINALIZER in sim.find(FILES, name)["metadata"]["finalizers"]
    sim.kube.order_faults("list_page", Fault(ObjectNotFound("the server could not find it")))
    await sim.wait(lambda: is_empty(sim.kube, FILES), seconds=20)


@in_virtual_time
async def test_revoked_rights_do_not_end_the_look() -> None:
    """Its Role may be deleted at any moment; what was known stays."""
    sim = await Simulation.start(FakeUpstream(seconds=1000))
    operator = sim.running
    termination = operator.context.termination
    sim.kube.order_faults("is_namespace_terminating", Fault(RequestForbidden("get")))
    await termination.look()
    assert not termination.is_of_namespace
    await end_namespace(sim.kube)
    await termination.look()
    sim.kube.order_faults("list_creatable", Fault(RequestForbidden("get")))
    await termination.look()
    assert termination.is_of_namespace
    assert all(map(termination.covers, KINDS))


async def test_one_replica_alone_ends_the_objects_of_a_namespace() -> None:
    kube = FakeKubernetes()
    for plural, finalizer in ("gatewaytasks", TASK_FINALIZER), (OWNERS[0], REMAINS_FINALIZER):
        kube.put(plural, {"metadata": {"name": "a", "finalizers": [finalizer]}, "spec": {}})
    kube.is_terminating = True
    await Termination(kube, deletes=False).look()
    for plural in ("gatewaytasks", OWNERS[0]):
        [obj] = kube.list_objects(plural)
        assert obj["metadata"]["finalizers"]
        assert "deletionTimestamp" not in obj["metadata"]


@in_virtual_time
async def test_objects_of_a_namespace_made_again_are_not_deleted() -> None:
    sim = await Simulation.start(FakeUpstream(seconds=1000))
    operator = sim.running
    termination = operator.context.termination
    # it is not found, as behind a proxy that has just started
    sim.kube.order_faults("is_namespace_terminating", Fault(ObjectNotFound("404")))
    await termination.look()
    await end_namespace(sim.kube)
    delete_all, sim.kube.delete_all = sim.kube.delete_all, fail  # type: ignore[method-assign]
    with suppress(KubernetesUnavailable):
        await termination.look()
    sim.kube.is_terminating, sim.kube.delete_all = False, delete_all  # type: ignore[method-assign]
    name = await sim.run(deadline=5000)
    await termination.look()
    assert not termination.is_of_namespace
    assert not any(map(termination.covers, KINDS))
    assert "deletionTimestamp" not in sim.kube.find(TASKS, name)["metadata"]  # type: ignore[index]


async def fail(_: str) -> None:
    raise KubernetesUnavailable


@in_virtual_time
async def test_jobs_are_stopped_after_sigterm_in_a_terminating_namespace() -> None:
    sim = await Simulation.start(FakeUpstream(seconds=1000, latency=1.0))
    operator = sim.running
    names = [await sim.admit(deadline=5000) for _ in range(3)]
    await sim.wait(lambda: all(sim.status(name).get("phase") == "Running" for name in names))
    await end_namespace(sim.kube)
    await operator.context.termination.look()
    await sim.pass_time(0.1)
    await operator.end()
    assert all(job.cancelled for job in sim.upstream.jobs)
