"""Replicas that divide the shards: each task has one owner, and changes hands without a loss."""

from collections.abc import Callable

import pytest

from gateway_core.api.ids import SHARD_LABEL, shard_of
from gateway_core.providers.upstream import SubmissionGuarantee
from gateway_operator.context import Shards
from gateway_operator.metrics import Metrics
from tests.fakes.clock import in_virtual_time
from tests.fakes.upstream import FakeUpstream
from tests.unit.operator.harness import QUOTE, TASKS, Operator, Simulation


def names(count: int, owns: Callable[[str], bool]) -> list[str]:
    every = (f"task-by-hand-{number}" for number in range(1000))
    return [name for name in every if owns(name)][:count]


@pytest.mark.parametrize("replicas", [1, 2, 3, 5, 16])
@pytest.mark.parametrize("limit", [1, 10, 16, 64, 1000])
def test_parts_of_limit_do_not_exceed_it(replicas: int, limit: int) -> None:
    parts = [Shards.divide(replicas, ordinal).scale(limit) for ordinal in range(replicas)]
    assert min(parts) >= 1
    assert sum(parts) <= max(limit, replicas)
    # of what does not divide evenly, less than one call a replica is lost
    assert sum(parts) > limit - replicas


@pytest.mark.parametrize("replicas", [2, 3, 16])
def test_each_task_is_worked_by_one_replica(replicas: int) -> None:
    owners = [Shards.divide(replicas, ordinal).owns_rest for ordinal in range(replicas)]
    assert owners == [True] + [False] * (replicas - 1)


@pytest.mark.parametrize("replicas", [1, 3, 16])
def test_metrics_of_replicas_cover_all_shards(replicas: int) -> None:
    told: list[str] = []
    for ordinal in range(replicas):
        metrics = Metrics()
        metrics.show_shards(Shards.divide(replicas, ordinal).numbers)
        [family] = [f for f in metrics.registry.collect() if f.name == "gateway_shard_owned"]
        told += [sample.labels["shard"] for sample in family.samples if sample.value == 1]
        metrics.show_shards(())
        [family] = [f for f in metrics.registry.collect() if f.name == "gateway_shard_owned"]
        assert not family.samples
    assert sorted(told, key=int) == [str(number) for number in range(16)]


@pytest.mark.parametrize("replicas", [2, 3])
@in_virtual_time
async def test_tasks_from_kubectl_reach_their_shard_owners(replicas: int) -> None:
    sim = Simulation(FakeUpstream(seconds=30))
    await sim.open_books("demo")
    owners = sim.boot_replicas(replicas)
    made = [await sim.apply(f"task-by-hand-{number}") for number in range(12)]
    await sim.wait(lambda: all(sim.status(n).get("phase") == "Running" for n in made))
    for owner in owners:
        assert set(owner.cache.names()) == {n for n in made if owner.context.shards.owns_name(n)}
    for name in made:
        assert (await sim.finish(name))["phase"] == "Completed"
        assert sim.count_jobs(name) == 1
    sim.check_history()
    assert await sim.balance() == (QUOTE * len(made), 0)


@in_virtual_time
async def test_wrong_shard_label_is_corrected() -> None:
    sim = Simulation()
    await sim.open_books("demo")
    sim.boot_replicas(2)
    [name] = names(1, Shards.divide(2, 0).owns_name)
    metadata = {"name": name, "labels": {SHARD_LABEL: "15"}}
    await sim.kube.create(TASKS, {"metadata": metadata, "spec": sim.spec()})
    assert (await sim.finish(name))["phase"] == "Completed"
    assert sim.history[name][-1]["metadata"]["labels"][SHARD_LABEL] == str(shard_of(name))
    assert sim.count_jobs(name) == 1


@in_virtual_time
async def test_task_refused_at_adoption_is_closed_in_any_shard() -> None:
    sim = Simulation()
    await sim.open_books("demo")
    sim.boot_replicas(2)
    made = [await sim.apply(f"task-by-hand-{n}", accountName="nobody") for n in range(6)]
    for name in made:
        assert (await sim.finish(name))["failure"]["code"] == "invalid_request"
    assert sim.upstream.calls == []


@in_virtual_time
async def test_task_refused_at_adoption_sends_one_callback() -> None:
    """The adopter writes the terminal state, and the shard's owner sends the callback."""
    sim = Simulation()
    await sim.open_books("demo")
    sim.boot_replicas(2)
    url = "https://example.com/hook"
    made = [
        await sim.apply(f"task-by-hand-{n}", modelId="nothing", callbackUrl=url) for n in range(6)
    ]
    for name in made:
        await sim.wait(lambda name=name: sim.status(name).get("work") == "Settled", seconds=120)
        assert sim.status(name)["failure"]["code"] == "invalid_request"
    assert len(sim.receivers.attempts) == len(made)


@in_virtual_time
async def test_kill_before_labelling_loses_nothing() -> None:
    sim = Simulation()
    await sim.open_books("demo")
    first, _ = sim.boot_replicas(2)
    [name] = names(1, Shards.divide(2, 1).owns_name)
    await first.kill()
    await sim.apply(name)
    await sim.pass_time(5)
    assert not sim.status(name)
    sim.replicas.append(Operator(sim, sim.lag, Shards.divide(2, 0)))
    assert (await sim.finish(name))["phase"] == "Completed"
    assert sim.count_jobs(name) == 1


@pytest.mark.parametrize(
    ("counts", "guarantee", "overlap"),
    [
        ((1, 3, 1), SubmissionGuarantee.IDEMPOTENCY_KEY, 0.0),
        ((2, 3, 2), SubmissionGuarantee.IDEMPOTENCY_KEY, 3.0),
        ((2, 3, 2), SubmissionGuarantee.LOOKUP, 0.0),
        ((1, 2, 1), SubmissionGuarantee.LOOKUP, 3.0),
        ((1, 2, 1), SubmissionGuarantee.NONE, 0.0),
        ((1, 3, 1), SubmissionGuarantee.NONE, 3.0),
    ],
)
@in_virtual_time
async def test_change_of_replicas_loses_and_doubles_nothing(
    counts: tuple[int, ...], guarantee: SubmissionGuarantee, overlap: float
) -> None:
    """Old and new owners side by side for a while, as while a StatefulSet is rolled."""
    sim = Simulation(FakeUpstream(guarantee=guarantee, seconds=8))
    await sim.open_books("demo")
    made: list[str] = []
    for count in counts:
        before, sim.replicas = sim.replicas, []
        sim.boot_replicas(count)
        for _ in range(4):
            made.append(await sim.admit())
            made.append(await sim.apply(f"task-by-hand-{len(made)}"))
            await sim.pass_time(overlap / 4)
        sim.replicas, now = [*before, *sim.replicas], sim.replicas
        for operator in before:
            await operator.kill()
        sim.replicas = now
        await sim.pass_time(4)
    for name in made:
        status = await sim.finish(name, seconds=120)
        assert sim.count_jobs(name) <= 1
        if guarantee is not SubmissionGuarantee.NONE:
            assert status["phase"] == "Completed", status
    sim.check_history()
    charged = sum(sim.status(name)["chargedMicros"] for name in made)
    assert await sim.balance() == (charged, 0)


@in_virtual_time
async def test_new_owner_polls_within_seconds() -> None:
    sim = await Simulation.start(FakeUpstream(seconds=400))
    name = await sim.admit()
    await sim.pass_time(300)  # by now it is asked after every half minute
    await sim.kill()
    sim.boot_replicas(2)
    polls = len(sim.upstream.calls)
    await sim.wait(lambda: len(sim.upstream.calls) > polls, seconds=3)
    assert (await sim.finish(name, seconds=200))["phase"] == "Completed"
