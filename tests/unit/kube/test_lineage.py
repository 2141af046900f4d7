"""A restore of etcd is proven by a lower version or a missing token, and by nothing else."""

import asyncio

import pytest

from gateway_core.kube.errors import KubernetesUnavailable
from gateway_core.kube.lineage import ANNOTATION, CHECK_SECONDS, MAX_TOKENS, Lineage, RecordRestored
from tests.fakes.clock import in_virtual_time
from tests.fakes.kubernetes import FakeKubernetes


class Leases(FakeKubernetes):
    """The one Lease: each read takes the next of `reads`, versions and tokens, or fails."""

    reads: list[tuple[int, str] | None]
    written: str = ""

    async def find_lease(self, name):
        if len(self.reads) > 1:
            read = self.reads.pop(0)
        else:
            [read] = self.reads
        if read is None:
            raise KubernetesUnavailable
        version, tokens = read
        meta = {"name": name, "resourceVersion": "1", "annotations": {ANNOTATION: tokens}}
        return {"metadata": meta}, version

    async def renew_lease(self, name, holder, *, annotations=None, version=None):
        assert version == "1"
        self.written = (annotations or {})[ANNOTATION]


def make_lineage(*reads: tuple[int, str] | None) -> tuple[Lineage, Leases]:
    kube = Leases()
    kube.reads = list(reads)
    return Lineage(kube), kube


@pytest.mark.parametrize(
    ("version", "tokens"),
    [
        (10, ["a", "b"]),
        (11, ["a", "b", "c"]),
        # older tokens are dropped
        (11, ["b", "c"]),
    ],
)
def test_record_that_went_on_is_no_restore(version, tokens):
    lineage, _ = make_lineage()
    lineage.observe(10, ["a", "b"])
    lineage.observe(version, tokens)


@pytest.mark.parametrize(
    ("version", "tokens"),
    [
        (9, ["a", "b"]),
        (9, ["a"]),
        # with versions that the restore has raised
        (1_000_000_009, ["a"]),
        (1_000_000_020, ["a", "c"]),
        (1_000_000_009, []),
    ],
)
def test_record_that_lacks_what_was_read_is_a_restore(version, tokens):
    lineage, _ = make_lineage()
    lineage.observe(10, ["a", "b"])
    with pytest.raises(RecordRestored):
        lineage.observe(version, tokens)


def test_first_read_and_a_record_without_tokens_are_no_restore():
    lineage, _ = make_lineage()
    lineage.observe(5, [])
    lineage.observe(5, [])
    lineage.observe(6, ["a"])


async def test_renewal_adds_a_token_and_drops_the_oldest():
    tokens = [f"{number:08x}" for number in range(MAX_TOKENS)]
    lineage, kube = make_lineage((10, " ".join(tokens)))
    extended = await lineage.extend("one")
    assert extended[:-1] == tokens[1:]
    assert kube.written.split() == extended
    # the own token counts as read: a restore that lacks it is noticed
    with pytest.raises(RecordRestored):
        await lineage.read()


async def test_token_of_a_renewal_that_failed_is_not_expected():
    lineage, kube = make_lineage((10, "a"))

    async def fail(*_args, **_options):
        raise KubernetesUnavailable

    kube.renew_lease = fail
    with pytest.raises(KubernetesUnavailable):
        await lineage.extend("one")
    assert await lineage.read() == ["a"]


@in_virtual_time
async def test_process_is_ended_once_and_over_outages():
    lineage, _ = make_lineage((10, "a b"), None, (1_000_000_010, "a"))
    ends: list[float] = []
    loop = asyncio.get_running_loop()
    running = asyncio.create_task(lineage.run(lambda: ends.append(loop.time())))
    begun = loop.time()
    await asyncio.sleep(100 * CHECK_SECONDS)
    running.cancel()
    assert [moment - begun for moment in ends] == [2 * CHECK_SECONDS]
