"""Code adapters: whatever their code does, the gateway goes on and says what is wrong."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway_core.api.provider import ProviderSpec
from gateway_core.egress.addresses import AddressPolicy
from gateway_core.providers import http_calls, plugins
from gateway_core.providers.plugins import CodeUpstream
from gateway_core.providers.upstream import (
    AdapterFailed,
    AdapterMissing,
    JobInput,
    JobReport,
    JobState,
    UpstreamBusy,
    UpstreamRejected,
    UpstreamUnclear,
)
from tests.servers.guide import install, on_path

SECRET = "s3cr3t-Credential-0042"
JOB = JobInput("ref", "model", {})
SOURCE = """
import asyncio, json
from contextlib import asynccontextmanager
from gateway_core.providers.upstream import *

class Odd(Upstream):
    guarantee = SubmissionGuarantee.NONE
    submit_seconds = 60.0

    def __init__(self, setup):
        self.setup = setup
        self.does = json.loads(setup.config)
        for name, value in self.does.get("traits", {}).items():
            setattr(self, name, value)
        self.do("init")

    def do(self, call):
        exec(self.does.get(call, "pass"), globals(), {"self": self})

    async def do_later(self, call, value):
        deed = self.does.get(call)
        if deed == "hang":
            await asyncio.sleep(1000)
        self.do(call)
        return eval(self.does.get(call + " gives", repr(value)))

    async def start(self):
        await self.do_later("start", None)

    async def submit(self, job):
        return await self.do_later("submit", "job-1")

    async def find(self, reference):
        return await self.do_later("find", None)

    async def poll(self, job_id):
        return await self.do_later("poll", None) or JobReport(JobState.RUNNING)

    async def cancel(self, job_id):
        await self.do_later("cancel", None)

    @asynccontextmanager
    async def fetch(self, url):
        self.do("fetch")
        async def chunks():
            for piece in self.does.get("pieces", ["abc", "def"]):
                yield piece.encode()
            self.do("end")
        yield Download(self.does.get("content", "video/mp4"), chunks())

    async def close(self):
        self.do("close")
"""
Make = Callable[..., CodeUpstream]


@pytest.fixture(autouse=True)
def packages(tmp_path: Path) -> Iterator[Path]:
    install(tmp_path, "odd_package", SOURCE, odd="Odd")
    with on_path(tmp_path):
        yield tmp_path


@pytest.fixture
async def make() -> AsyncIterator[Make]:
    """Makes an adapter that is not started; each deed is a statement that a call does first."""
    made: list[CodeUpstream] = []

    def build(kind: str = "odd", credential: str | None = SECRET, **does: Any) -> CodeUpstream:
        config = json.dumps({name.replace("_gives", " gives"): deed for name, deed in does.items()})
        spec = ProviderSpec(type=kind, config=config, max_concurrent_requests=2)
        made.append(CodeUpstream(spec, credential, AddressPolicy()))
        return made[-1]

    yield build
    for upstream in made:
        await upstream.close()


async def test_adapter_gets_its_context(make: Make) -> None:
    upstream = make(submit="self.seen = (self.setup.credential, self.setup.config)")
    await upstream.start()
    assert await upstream.submit(JOB) == "job-1"
    assert (await upstream.poll("job-1")).state is JobState.RUNNING
    assert upstream.submit_seconds >= 60 + 10 + 10, "slot, the call, and a margin"


async def test_type_that_nobody_offers_names_those_there_are(make: Make) -> None:
    with pytest.raises(AdapterMissing, match=r"'grpc'; there is http, odd"):
        await make("grpc").start()


async def test_type_that_two_packages_offer_is_nobodys(make: Make, packages: Path) -> None:
    install(packages, "odd_other", "Odd = 5", odd="Odd")
    with pytest.raises(AdapterMissing, match="more than one package"):
        await make().start()


@pytest.mark.parametrize("step", ["init", "start"])
async def test_problems_are_reported_without_the_credential(make: Make, step: str) -> None:
    deed = "raise ValueError('a url is missing beside ' + self.setup.credential)"
    with pytest.raises(ValueError, match="config: a url is missing beside") as caught:
        await make(**{step: deed}).start()
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("does", "text"),
    [
        ({"init": "raise KeyError(self.setup.credential)"}, r"raised KeyError at <string>:1"),
        ({"start": "hang"}, "did not start within 0.1 s"),
        ({"traits": {"guarantee": "KEY"}}, "guarantee must be"),
        (
            {"traits": {"submit_seconds": 1e9}},
            "submit_seconds must be at most 600",
        ),
        (
            {"traits": {"poll_interval": [0, 5]}},
            "poll_interval must be at least 0.5",
        ),
        ({"traits": {"poll_interval": 5}}, "poll_interval must be a valid tuple"),
        ({"init": "self.guarantee = SubmissionGuarantee.LOOKUP"}, "guarantees a look-up and has"),
    ],
)
async def test_adapter_that_fails_to_start_says_why(
    make: Make, monkeypatch: pytest.MonkeyPatch, does: dict[str, Any], text: str
) -> None:
    if "did not start" in text:
        monkeypatch.setattr(plugins, "START_SECONDS", 0.1)
    with pytest.raises(AdapterFailed, match=text) as caught:
        await make(**does).start()
    assert SECRET not in str(caught.value)


async def test_adapter_whose_import_fails_names_the_module(make: Make, packages: Path) -> None:
    install(packages, "torn", "import no_such_module", torn="Odd")
    with pytest.raises(AdapterFailed, match=r"raised ModuleNotFoundError at torn.py:1"):
        await make("torn").start()


@pytest.mark.parametrize(
    "deed",
    [
        "raise KeyError(self.setup.credential)",
        "raise UpstreamError('of no kind')",
        "raise asyncio.CancelledError",
        "raise TimeoutError",
        "hang",
    ],
)
async def test_call_that_goes_wrong_leaves_the_outcome_open(
    make: Make, monkeypatch: pytest.MonkeyPatch, deed: str
) -> None:
    upstream = make(submit=deed, poll=deed, cancel=deed, find=deed)
    await upstream.start()
    if deed == "hang":
        monkeypatch.setattr(plugins, "CALL_SECONDS", 0.05)
        monkeypatch.setattr(upstream, "_submit_limit", 0.05)
    calls = [upstream.submit(JOB), upstream.poll("j"), upstream.find("r"), upstream.cancel("j")]
    for call in calls:
        with pytest.raises(UpstreamUnclear) as caught:
            await call
        assert SECRET not in str(caught.value)


@pytest.mark.parametrize("given", ["None", "5.5", "''", "'a' * 600", "'a\\nb'", "[]", "b'x'"])
async def test_id_that_is_none_leaves_the_outcome_open(make: Make, given: str) -> None:
    upstream = make(submit_gives=given)
    await upstream.start()
    with pytest.raises(UpstreamUnclear):
        await upstream.submit(JOB)


@pytest.mark.parametrize(
    "given",
    [
        "5",
        "{'state': 'done'}",
        "JobReport('done')",
        "JobReport(JobState.SUCCEEDED)",
        "JobReport(JobState.SUCCEEDED, ('',))",
        "JobReport(JobState.SUCCEEDED, tuple('x' * 17))",
        "JobReport(JobState.SUCCEEDED, 'https://a.example')",
        "JobReport(JobState.SUCCEEDED, (5,))",
    ],
)
async def test_report_that_is_none_is_asked_for_again(make: Make, given: str) -> None:
    upstream = make(poll_gives=given)
    await upstream.start()
    with pytest.raises(UpstreamUnclear):
        await upstream.poll("job-1")


async def test_texts_are_cleaned(make: Make) -> None:
    upstream = make(
        submit="raise UpstreamRejected('Bad key ' + self.setup.credential + ' used')",
        poll_gives="JobReport(JobState.FAILED, message='job-12345 fails at https://x.example/a')",
    )
    await upstream.start()
    with pytest.raises(UpstreamRejected) as caught:
        await upstream.submit(JOB)
    assert caught.value.message == "Bad key [removed] used"
    report = await upstream.poll("job-12345")
    assert report == JobReport(JobState.FAILED, message="[removed] fails at [removed]")


async def test_no_more_calls_than_allowed_are_under_way(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_calls, "SLOT_SECONDS", 0.05)
    upstream = make(poll="hang")
    await upstream.start()
    async with asyncio.TaskGroup() as group:
        calls = [group.create_task(upstream.poll("job-1")) for _ in range(2)]
        await asyncio.sleep(0)  # each takes its slot before it first waits
        with pytest.raises(UpstreamBusy, match="Too many"):
            await upstream.poll("job-1")
        for call in calls:
            assert not call.done()
            call.cancel()


async def read(upstream: CodeUpstream) -> bytes:
    async with upstream.fetch("anything") as download:
        return b"".join([chunk async for chunk in download.chunks])


async def test_output_comes_in_pieces(make: Make) -> None:
    upstream = make(pieces=["abc"] * 100)
    await upstream.start()
    assert await read(upstream) == b"abc" * 100


@pytest.mark.parametrize(
    "does",
    [
        {"content": "text/html"},
        {"content": 5},
        {"pieces": []},
        {"fetch": "raise KeyError('a')"},
        {"end": "raise KeyError('a')"},
        {"end": "raise UpstreamUnclear('cut')"},
    ],
)
async def test_output_that_goes_wrong_is_unclear(make: Make, does: dict[str, Any]) -> None:
    upstream = make(**does)
    await upstream.start()
    with pytest.raises(UpstreamUnclear):
        await read(upstream)


async def test_adapter_that_cannot_be_closed_is_abandoned(make: Make) -> None:
    upstream = make(close="raise KeyError")
    await upstream.start()
    await upstream.close()
    with pytest.raises(UpstreamBusy):
        await upstream.poll("job-1")
