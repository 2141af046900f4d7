"""Code adapters: whatever their code does, the gateway goes on and says what is wrong."""

import asyncio
import json
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway_core.api.provider import ProviderSpec
from gateway_core.egress.addresses import AddressPolicy
from gateway_core.providers import plugin_thread as isolation
from gateway_core.providers import plugins
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
from tests.servers.packages import install, on_path

SECRET = "s3cr3t-Credential-0042"
JOB = JobInput("ref", "model", {})
SOURCE = """
import asyncio, json, sys, threading
from contextlib import asynccontextmanager
from gateway_core.providers.upstream import *

LIVING, HANGING = [], []
ENTERED, GATE = threading.Event(), threading.Event()

def block():
    ENTERED.set()
    GATE.wait(60)

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
            HANGING.append(call)
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


def hurry_starts(limits: pytest.MonkeyPatch) -> None:
    """Has starts given up soon. Only for one that never ends: a machine may stand still."""
    limits.setattr(plugins, "PATIENCE_SECONDS", 0.3)
    limits.setattr(plugins, "START_SECONDS", 0.5)


def hurry_calls(limits: pytest.MonkeyPatch) -> None:
    """Has calls given up soon, those of `submit` excepted. Only for ones that never end."""
    limits.setattr(plugins, "CALL_SECONDS", 1.0)


def set_patience(upstream: CodeUpstream, seconds: float) -> None:
    """How long a started adapter's calls may wait for their begin."""
    assert upstream._isolation is not None
    upstream._isolation._patience = seconds


def get_module() -> Any:
    """The package of the adapter `odd`, once one was started."""
    return sys.modules["odd_package"]


def let_go() -> None:
    """Ends what blocks the adapter's thread."""
    # a start that is given up may not have imported it yet
    gate = getattr(sys.modules.get("odd_package"), "GATE", None)
    if gate is not None:
        gate.set()


def is_rid_of_threads() -> bool:
    """Whether none is left of those that were given up; what blocks them is ended."""
    let_go()
    return not isolation.count_stuck("adapter odd")


async def wait_until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - threads set it
            await asyncio.sleep(0.01)


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
    let_go()
    for upstream in made:
        await upstream.close()
    # none of its threads counts against the next test's
    await wait_until(is_rid_of_threads)


async def test_adapter_gets_its_context_and_runs_in_its_own_thread(make: Make) -> None:
    upstream = make(submit="self.seen = (self.setup.credential, self.setup.config)")
    await upstream.start()
    assert await upstream.submit(JOB) == "job-1"
    assert (await upstream.poll("job-1")).state is JobState.RUNNING
    assert upstream.trouble is None
    assert upstream.submit_seconds >= 60 + 10 + 5 + 10, "turn, begin, the call, and a margin"
    assert any(thread.name == "adapter odd" for thread in threading.enumerate())


async def test_a_type_that_nobody_offers_names_those_there_are(make: Make) -> None:
    with pytest.raises(AdapterMissing, match=r"'grpc'; there is http, odd"):
        await make("grpc").start()


async def test_a_type_that_two_packages_offer_is_nobodys(make: Make, packages: Path) -> None:
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
        ({"start": "sys.exit(1)"}, "raised SystemExit"),
        ({"start": "raise KeyboardInterrupt"}, "raised KeyboardInterrupt"),
        ({"start": "block()"}, "did not start within 0.5 s"),
        ({"init": "block()"}, "did not start within 0.5 s"),
        ({"start": "hang"}, "did not start within 0.5 s"),
        ({"traits": {"guarantee": "KEY"}}, "guarantee: Input should be"),
        (
            {"traits": {"submit_seconds": 1e9}},
            "submit_seconds: Input should be less than or equal to 600",
        ),
        (
            {"traits": {"poll_interval": [0, 5]}},
            "poll_interval: Input should be greater than or equal to 0.5",
        ),
        ({"traits": {"poll_interval": 5}}, "poll_interval: Input should be a valid tuple"),
        ({"init": "self.guarantee = SubmissionGuarantee.LOOKUP"}, "guarantees a look-up and has"),
    ],
)
async def test_adapter_that_fails_to_start_says_why(
    make: Make, monkeypatch: pytest.MonkeyPatch, does: dict[str, Any], text: str
) -> None:
    if "did not start" in text:
        hurry_starts(monkeypatch)
    began = time.monotonic()
    with pytest.raises(AdapterFailed, match=text) as caught:
        await make(**does).start()
    assert SECRET not in str(caught.value)
    assert time.monotonic() - began < 30


async def test_adapter_whose_import_fails_names_the_module(make: Make, packages: Path) -> None:
    install(packages, "torn", "import no_such_module", torn="Odd")
    with pytest.raises(AdapterFailed, match=r"raised ModuleNotFoundError at torn.py:1"):
        await make("torn").start()


@pytest.mark.parametrize(
    "deed",
    [
        "raise KeyError(self.setup.credential)",
        "raise UpstreamError('of no kind')",
        "sys.exit(1)",
        "raise asyncio.CancelledError",
        "raise TimeoutError",
        "hang",
    ],
)
async def test_a_call_that_goes_wrong_leaves_the_outcome_open(
    make: Make, monkeypatch: pytest.MonkeyPatch, deed: str
) -> None:
    traits = {}
    if deed == "hang":
        hurry_calls(monkeypatch)
        traits["submit_seconds"] = 1.0
    upstream = make(submit=deed, poll=deed, cancel=deed, find=deed, traits=traits)
    await upstream.start()
    calls = [upstream.submit(JOB), upstream.poll("j"), upstream.find("r"), upstream.cancel("j")]
    for call in calls:
        with pytest.raises(UpstreamUnclear) as caught:
            await call
        assert SECRET not in str(caught.value)
    assert upstream.trouble is None


@pytest.mark.parametrize("given", ["None", "5.5", "''", "'a' * 600", "'a\\nb'", "[]", "b'x'"])
async def test_an_id_that_is_none_leaves_the_outcome_open(make: Make, given: str) -> None:
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
async def test_a_report_that_is_none_is_asked_for_again(make: Make, given: str) -> None:
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


async def test_blocking_adapter_is_unhealthy_until_it_continues(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    upstream = make(poll="block()")
    await upstream.start()
    hurry_calls(monkeypatch)
    # the poll must have begun by then
    set_patience(upstream, 1.0)
    beats = 0

    async def beat() -> None:
        nonlocal beats
        while True:
            await asyncio.sleep(0.02)
            beats += 1

    heart = asyncio.create_task(beat())
    with pytest.raises(UpstreamUnclear):
        await upstream.poll("job-1")
    assert upstream.trouble == "the adapter odd blocks its thread"
    with pytest.raises(UpstreamBusy):
        await upstream.submit(JOB)
    # while the thread blocks, the gateway's own loop goes on
    await wait_until(lambda: beats > 25)
    heart.cancel()
    assert upstream.trouble is not None
    let_go()
    await wait_until(lambda: upstream.trouble is None)
    set_patience(upstream, plugins.PATIENCE_SECONDS)
    assert await upstream.submit(JOB) == "job-1"


async def test_a_submission_that_was_given_up_is_never_made_later(make: Make) -> None:
    upstream = make(poll="block()", submit="LIVING.append('made')")
    await upstream.start()
    poll = asyncio.create_task(upstream.poll("job-1"))
    await wait_until(get_module().ENTERED.is_set)
    set_patience(upstream, 0.3)
    with pytest.raises(UpstreamBusy):
        await upstream.submit(JOB)
    set_patience(upstream, plugins.PATIENCE_SECONDS)
    let_go()
    await asyncio.gather(poll, return_exceptions=True)
    await upstream.find("ref")
    assert get_module().LIVING == []


async def test_no_more_calls_than_allowed_are_under_way(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    upstream = make(poll="hang")
    await upstream.start()
    calls = [asyncio.create_task(upstream.poll("job-1")) for _ in range(2)]
    await wait_until(lambda: get_module().HANGING == ["poll"] * 2)
    monkeypatch.setattr(plugins, "_TURN_SECONDS", 0.2)
    with pytest.raises(UpstreamBusy, match="Too many"):
        await upstream.poll("job-1")
    assert get_module().HANGING == ["poll"] * 2
    for call in calls:
        assert not call.done()
        call.cancel()
    await asyncio.wait(calls)


async def read(upstream: CodeUpstream) -> bytes:
    async with upstream.fetch("anything") as download:
        return b"".join([chunk async for chunk in download.chunks])


async def test_an_output_comes_in_pieces(make: Make) -> None:
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
        {"end": "sys.exit(1)"},
        {"end": "raise UpstreamUnclear('cut')"},
    ],
)
async def test_an_output_that_goes_wrong_is_unclear(make: Make, does: dict[str, Any]) -> None:
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


async def test_starts_that_never_end_do_not_use_up_the_threads(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plugins, "_MOST_STUCK", 1)
    monkeypatch.setattr(isolation, "_JOIN_SECONDS", 0.1)
    with monkeypatch.context() as limits:
        hurry_starts(limits)
        with pytest.raises(AdapterFailed, match="did not start within"):
            await make(start="block()").start()
    with pytest.raises(AdapterFailed, match="still blocks 1 thread"):
        await make().start()
    await wait_until(is_rid_of_threads)
    await make().start()
