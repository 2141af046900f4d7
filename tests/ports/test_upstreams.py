"""One set of promises, three ways to a provider: YAML, the guide's code adapter, and the fake."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest

from gateway_core.api.provider import ProviderSpec
from gateway_core.egress.addresses import AddressPolicy
from gateway_core.providers.registry import build_upstream
from gateway_core.providers.upstream import (
    JobReport,
    JobState,
    SubmissionGuarantee,
    Upstream,
    UpstreamBusy,
    UpstreamDenied,
    UpstreamError,
    UpstreamRejected,
    UpstreamUnclear,
)
from tests.fakes.upstream import FakeUpstream, Outcome
from tests.ports.upstream_promises import PROMISES, Rig, nothing_is_done_after_the_close
from tests.servers.guide import install_example, lead_to, on_path, read_example
from tests.servers.providers import NEVER, OperationsProvider

POLICY = AddressPolicy((ip_network("127.0.0.0/8"), ip_network("::1/128")))
CODES = {
    UpstreamRejected: "CONTENT_REFUSED",
    UpstreamBusy: "OVERLOADED",
    UpstreamDenied: "NO_CREDIT",
}
OUTCOMES = {JobState.SUCCEEDED: "Success", JobState.FAILED: "Failure"}


@dataclass
class ServerRig:
    """A provider over HTTP."""

    upstream: Upstream
    server: OperationsProvider
    upstream_model: str = "film/wide-2"

    def end(self, reference: str, state: JobState) -> None:
        self.server.finish(reference, OUTCOMES[state])

    def fail_next(self, error: type[UpstreamError], *, made: bool = False) -> None:
        if error is UpstreamUnclear:
            self.server.misbehave("submit", "cut", after=made)
        else:
            self.server.misbehave("submit", "error", detail=(CODES[error], "Not now."))

    def count_jobs(self, reference: str) -> int:
        return len(self.server.made(reference))


@dataclass
class FakeRig:
    """The fake of the unit tests."""

    upstream: FakeUpstream
    upstream_model: str = "q4"

    def end(self, reference: str, state: JobState) -> None:
        if state is JobState.FAILED:
            self.upstream.polls.append(JobReport(state))
        for job in self.upstream.jobs:
            if job.reference == reference:
                job.begun = float("-inf")

    def fail_next(self, error: type[UpstreamError], *, made: bool = False) -> None:
        outcomes = {
            UpstreamRejected: Outcome.REJECTED,
            UpstreamBusy: Outcome.BUSY,
            UpstreamDenied: Outcome.DENIED,
            UpstreamUnclear: Outcome.UNCLEAR_WITH_JOB if made else Outcome.UNCLEAR_WITHOUT_JOB,
        }
        self.upstream.submissions.append(outcomes[error])

    def count_jobs(self, reference: str) -> int:
        return sum(job.reference == reference for job in self.upstream.jobs)


@pytest.fixture
def packages(tmp_path: Path) -> Iterator[None]:
    install_example(tmp_path)
    with on_path(tmp_path):
        yield


async def open_yaml() -> AsyncIterator[Rig]:
    with OperationsProvider(seconds=NEVER) as server:
        example = lead_to(read_example("workshop"), server.url, "")
        spec = ProviderSpec.model_validate(example["GatewayProvider"]["spec"])
        upstream = build_upstream(spec, server.token, POLICY)
        await upstream.start()
        yield ServerRig(upstream, server)
        await upstream.close()


async def open_code() -> AsyncIterator[Rig]:
    with OperationsProvider(seconds=NEVER, signed=True) as server:
        config = json.dumps({"url": server.url, "outputHosts": ["localhost"]})
        upstream = build_upstream(ProviderSpec(type="signed", config=config), server.token, POLICY)
        await upstream.start()
        yield ServerRig(upstream, server)
        await upstream.close()


async def open_fake(**options: Any) -> AsyncIterator[Rig]:
    yield FakeRig(FakeUpstream(seconds=NEVER, latency=0.001, **options))


async def open_fake_with_lookup() -> AsyncIterator[Rig]:
    async for rig in open_fake(guarantee=SubmissionGuarantee.LOOKUP):
        yield rig


@pytest.fixture(params=[open_yaml, open_code, open_fake, open_fake_with_lookup])
async def rig(request: pytest.FixtureRequest, packages: None) -> AsyncIterator[Rig]:
    async for made in request.param():
        yield made


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
async def test_adapter_keeps(promise: Callable[[Rig], Awaitable[None]], rig: Rig) -> None:
    if promise is nothing_is_done_after_the_close and isinstance(rig, FakeRig):
        pytest.skip("the fake is the provider, too, and that outlives a connection")
    await promise(rig)
