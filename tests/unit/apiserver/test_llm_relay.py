"""Relay of a stream between two connections, in virtual time."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from gateway_apiserver.surfaces.llm import large_answers
from gateway_apiserver.surfaces.llm.large_answers import AnswerDropped, FrameRoom, LargeAnswers
from gateway_apiserver.surfaces.llm.relay import KeepAlive, Relay
from gateway_core.llm.formats.chat_stream import ChatStream
from gateway_core.llm.formats.sse import StreamBroken
from gateway_core.llm.formats.writers import ChatWriter
from gateway_core.llm.response import Response
from gateway_core.providers.upstream import UpstreamError, UpstreamInterrupted
from gateway_web.http1.exchange import ignore
from tests.fakes.clock import START, in_virtual_time

COMMENT = ChatWriter().keep_alive()
CHUNK = b'data: {"id":"c","model":"m","choices":[{"index":0,"delta":{"content":"%b"}}]}\n\n'


class Client:
    """Takes what is written; `times` are seconds since the start, without the head's."""

    is_received = True

    def __init__(self) -> None:
        self.on_gone = self.on_drained = ignore
        self.is_gone = self.is_behind = False
        self.times: list[float] = []
        self.frames: list[bytes] = []

    def write(self, data: bytes) -> None:
        assert not self.is_behind, "a client that is behind is written nothing"
        if data:
            self.times.append(asyncio.get_running_loop().time() - START)
            self.frames.append(data)


class Provider:
    """The connection of a response, which a test drives."""

    is_paused = False

    def __init__(self) -> None:
        self.response = Response(asyncio.get_running_loop(), self)

    def resume(self) -> None:
        self.is_paused = False

    def fail(self, error: UpstreamError) -> None:
        self.response.end(error)

    def send(self, data: bytes) -> None:
        self.response.chunks.append(data)
        self.response.size += len(data)
        self.response.wake()


class Scene:
    """A relay that runs between both."""

    def __init__(self, room: FrameRoom | None = None) -> None:
        self.client, self.provider = Client(), Provider()
        self.stream = ChatStream("public", include_usage=False)
        self.keep_alive = KeepAlive(self.client, self.stream.keep_alive)
        self.keep_alive.start()
        self.relay = Relay(self.provider.response, self.stream, self.client, self.keep_alive, room)
        self.running = asyncio.ensure_future(self.relay.run(b""))


@asynccontextmanager
async def relay(room: FrameRoom | None = None) -> AsyncIterator[Scene]:
    scene = Scene(room)
    # `run` begins
    await asyncio.sleep(0)
    try:
        yield scene
    finally:
        scene.keep_alive.stop()
        scene.running.cancel()
        with suppress(asyncio.CancelledError, UpstreamError, StreamBroken, AnswerDropped):
            await scene.running


@in_virtual_time
async def test_silent_stream_gets_a_keep_alive_every_15_seconds() -> None:
    async with relay() as scene:
        await asyncio.sleep(50)
    assert scene.client.times == [15, 30, 45]
    assert set(scene.client.frames) == {b": keep-alive\n\n"}


@in_virtual_time
async def test_stream_that_is_not_silent_gets_no_keep_alive() -> None:
    async with relay() as scene:
        for _ in range(20):
            await asyncio.sleep(10)
            scene.provider.send(CHUNK % b"a")
        await asyncio.sleep(14)
        assert COMMENT not in scene.client.frames
        await asyncio.sleep(2)
    assert scene.client.times[-1] == 215


@in_virtual_time
async def test_client_that_takes_nothing_gets_neither_frames_nor_keep_alives() -> None:
    async with relay() as scene:
        scene.client.is_behind = True
        scene.provider.send(CHUNK % b"late")
        await asyncio.sleep(100)
        assert scene.client.frames == []
        scene.client.is_behind = False
        scene.client.on_drained()
        (frame,) = scene.client.frames
        assert b'"public"' in frame
        assert b"late" in frame


@in_virtual_time
async def test_end_of_the_stream_ends_keep_alives() -> None:
    async with relay() as scene:
        await asyncio.sleep(20)
        scene.provider.response.end()
        assert await scene.running == b""
        scene.keep_alive.stop()
        await asyncio.sleep(100)
    assert scene.client.times == [15]
    assert scene.client.on_drained is ignore


@in_virtual_time
async def test_frames_before_a_break_are_sent_before_the_error() -> None:
    async with relay() as scene:
        scene.client.is_behind = True
        scene.provider.send(CHUNK % b"last")
        scene.provider.fail(UpstreamInterrupted("cut"))
        scene.client.is_behind = False
        scene.client.on_drained()
        with pytest.raises(UpstreamInterrupted):
            await scene.running
        assert b"last" in scene.client.frames[0]


@in_virtual_time
async def test_frame_that_cannot_be_read_ends_the_relay() -> None:
    async with relay() as scene:
        scene.provider.send(b"data: {\n\n")
        with pytest.raises(StreamBroken):
            await scene.running


@in_virtual_time
async def test_large_frame_waits_for_room_and_returns_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_answers, "MOST_UNITS", 4)
    answers = LargeAnswers()
    other = FrameRoom(answers, "account")
    await other.take(1_100_000)
    frame = CHUNK % (b"x" * 1_500_000)
    async with relay(FrameRoom(answers, "account")) as scene:
        scene.provider.send(frame[:1_200_000])
        scene.provider.send(frame[1_200_000:])
        await asyncio.sleep(5)
        assert scene.client.frames == []
        other.release()
        await asyncio.sleep(1)
        assert len(b"".join(scene.client.frames)) > 1_500_000
        scene.provider.send(CHUNK % b"small")
        await asyncio.sleep(1)
        # its client has taken the large one
        await other.take(1_100_000)
    other.release()


@in_virtual_time
async def test_large_frame_without_room_ends_its_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_answers, "MOST_UNITS", 4)
    answers = LargeAnswers()
    await FrameRoom(answers, "account").take(1_100_000)
    async with relay(FrameRoom(answers, "account")) as scene:
        scene.provider.send((CHUNK % (b"x" * 1_500_000))[:1_200_000])
        scene.provider.send(b"x")
        with pytest.raises(AnswerDropped, match="Too many large answers"):
            await scene.running
        assert scene.stream.text_bytes >= 1_200_000, "the provider has written it"


@in_virtual_time
async def test_stream_that_is_done_waits_a_second_for_its_usage() -> None:
    async with relay() as scene:
        scene.provider.send(CHUNK % b"a" + b"data: [DONE]\n\n")
        await asyncio.sleep(0.9)
        assert not scene.running.done()
        await asyncio.sleep(0.2)
        assert (await scene.running, scene.stream.ended) == (b"", False)
        assert scene.stream.finish().endswith(b"data: [DONE]\n\n")


@in_virtual_time
async def test_usage_after_the_end_ends_a_stream_at_once() -> None:
    async with relay() as scene:
        scene.provider.send(CHUNK % b"a" + b"data: [DONE]\n\n")
        scene.provider.send(b'data: {"usage":{"prompt_tokens":9,"completion_tokens":5}}\n\n')
        assert (await scene.running).endswith(b"data: [DONE]\n\n")
        assert scene.stream.usage is not None


@in_virtual_time
async def test_failure_after_the_end_is_none_of_the_stream() -> None:
    async with relay() as scene:
        scene.provider.send(CHUNK % b"a" + b"data: [DONE]\n\n")
        scene.provider.fail(UpstreamInterrupted("reset"))
        assert await scene.running == b""
