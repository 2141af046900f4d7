"""Replicas that divide the shards: each task has one owner, and changes hands without a loss."""

from collections.abc import Callable

import pytest

from gateway_core.api.ids import SHARD_LABEL, shard_of
from gateway_core.providers.upstream import SubmissionGuarantee
from gateway_operator.metrics import Metrics
from gateway_operator.shards import Shards
from tests.fakes.clock import in_virtual_time
from tests.fakes.upstream import FakeUpstream
from tests.unit.operator.harness import QUOTE, TASKS, Operator, Stage


def names(count: int, owns: Callable[[str], bool]) -> list[str]:
    """So many task names that are somebody's."""
    every = (f"task-by-hand-{number}" for number in range(1000))
    return [name for name in every if owns(name)][:count]


@pytest.mark.parametrize("replicas", [1, 2, 3, 5, 16])
@pytest.mark.parametrize("limit", [1, 10, 16, 64, 1000])
def test_the_parts_of_a_limit_are_no_more_than_the_limit(replicas: int, limit: int) -> None:
    parts = [Shards.divide(replicas, ordinal).scale(limit) for ordinal in range(replicas)]
    assert min(parts) >= 1
    assert sum(parts) <= max(limit, replicas)
    # of what does not divide evenly, less than one call a replica is lost
    assert sum(parts) > limit - replicas


@pytest.mark.parametrize("replicas", [2, 3, 16])
def test_one_replica_sees_to_what_there_is_once(replicas: int) -> None:
    owners = [Shards.divide(replicas, ordinal).owns_rest for ordinal in range(replicas)]
    assert owners == [True] + [False] * (replicas - 1)


@pytest.mark.parametrize("replicas", [1, 3, 16])
def test_all_replicas_together_tell_of_all_shards(replicas: int) -> None:
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
def test_tasks_made_by_hand_reach_the_owners_of_their_shards(replicas: int) -> None:
    @in_virtual_time
    async def run() -> None:
        stage = Stage(FakeUpstream(seconds=30))
        await stage.open_books("demo")
        owners = stage.boot_replicas(replicas)
        made = [await stage.apply(f"task-by-hand-{number}") for number in range(12)]
        await stage.wait(lambda: all(stage.status(n).get("phase") == "Running" for n in made))
        for owner in owners:
            assert set(owner.cache.names()) == {
                n for n in made if owner.context.shards.owns_name(n)
            }
        for name in made:
            assert (await stage.finish(name))["phase"] == "Completed"
            assert stage.count_jobs(name) == 1
        stage.check_history()
        assert await stage.balance() == (QUOTE * len(made), 0)

    run()


@in_virtual_time
async def test_a_label_of_ones_own_making_finds_the_right_owner_all_the_same() -> None:
    stage = Stage()
    await stage.open_books("demo")
    stage.boot_replicas(2)
    [name] = names(1, Shards.divide(2, 0).owns_name)
    metadata = {"name": name, "labels": {SHARD_LABEL: "15"}}
    await stage.kube.create(TASKS, {"metadata": metadata, "spec": stage.spec()})
    assert (await stage.finish(name))["phase"] == "Completed"
    assert stage.history[name][-1]["metadata"]["labels"][SHARD_LABEL] == str(shard_of(name))
    assert stage.count_jobs(name) == 1


@in_virtual_time
async def test_what_is_refused_at_adoption_is_closed_whosever_shard_it_is() -> None:
    stage = Stage()
    await stage.open_books("demo")
    stage.boot_replicas(2)
    made = [await stage.apply(f"task-by-hand-{n}", accountName="nobody") for n in range(6)]
    for name in made:
        assert (await stage.finish(name))["failure"]["code"] == "invalid_request"
    assert stage.upstream.calls == []


@in_virtual_time
async def test_what_is_refused_at_adoption_is_told_once() -> None:
    """The adopter writes the terminal state, and the shard's owner sends the callback."""
    stage = Stage()
    await stage.open_books("demo")
    stage.boot_replicas(2)
    url = "https://example.com/hook"
    made = [
        await stage.apply(f"task-by-hand-{n}", modelId="nothing", callbackUrl=url) for n in range(6)
    ]
    for name in made:
        await stage.wait(lambda name=name: stage.status(name).get("work") == "Settled", seconds=120)
        assert stage.status(name)["failure"]["code"] == "invalid_request"
    assert len(stage.receivers.attempts) == len(made)


@in_virtual_time
async def test_the_adopters_death_before_the_label_loses_nothing() -> None:
    stage = Stage()
    await stage.open_books("demo")
    first, _ = stage.boot_replicas(2)
    [name] = names(1, Shards.divide(2, 1).owns_name)
    await first.kill()
    await stage.apply(name)
    await stage.pass_time(5)
    assert not stage.status(name)
    stage.replicas.append(Operator(stage, stage.lag, Shards.divide(2, 0)))
    assert (await stage.finish(name))["phase"] == "Completed"
    assert stage.count_jobs(name) == 1


@pytest.mark.parametrize("counts", [(1, 2, 1), (2, 3, 2), (1, 3, 1)])
@pytest.mark.parametrize("guarantee", list(SubmissionGuarantee))
@pytest.mark.parametrize("overlap", [0.0, 3.0])
def test_a_change_of_their_number_loses_and_doubles_nothing(
    counts: tuple[int, ...], guarantee: SubmissionGuarantee, overlap: float
) -> None:
    """Old and new owners side by side for a while, as while a StatefulSet is rolled."""

    @in_virtual_time
    async def run() -> None:
        stage = Stage(FakeUpstream(guarantee=guarantee, seconds=8))
        await stage.open_books("demo")
        made: list[str] = []
        for count in counts:
            before, stage.replicas = stage.replicas, []
            stage.boot_replicas(count)
            for _ in range(4):
                made.append(await stage.admit())
                made.append(await stage.apply(f"task-by-hand-{len(made)}"))
                await stage.pass_time(overlap / 4)
            stage.replicas, now = [*before, *stage.replicas], stage.replicas
            for operator in before:
                await operator.kill()
            stage.replicas = now
            await stage.pass_time(4)
        for name in made:
            status = await stage.finish(name, seconds=120)
            assert stage.count_jobs(name) <= 1
            if guarantee is not SubmissionGuarantee.NONE:
                assert status["phase"] == "Completed", status
        stage.check_history()
        charged = sum(stage.status(name)["chargedMicros"] for name in made)
        assert await stage.balance() == (charged, 0)

    run()


@in_virtual_time
async def test_what_a_new_owner_takes_over_is_asked_after_within_seconds() -> None:
    stage = Stage(FakeUpstream(seconds=400))
    await stage.boot()
    name = await stage.admit()
    await stage.pass_time(300)  # by now it is asked after every half minute
    await stage.kill()
    stage.boot_replicas(2)
    polls = len(stage.upstream.calls)
    await stage.wait(lambda: len(stage.upstream.calls) > polls, seconds=3)
    assert (await stage.finish(name, seconds=200))["phase"] == "Completed"
