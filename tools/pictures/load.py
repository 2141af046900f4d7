"""Varied load on a local run: every surface, with refusals, faults of the provider, and waves.

It is bounded in time and in calls that are under way, and goes to loopback alone.
"""

import asyncio
import math
import random
import time
import uuid
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from tools.pictures.calls import (
    FAST,
    LARGE,
    MODERATION,
    PROMPTS,
    SMALL,
    TASKS,
    VIDEO,
    Client,
    describe_task,
)

MAX_UNDER_WAY = 64
WAVE_SECONDS = 150.0
OUTAGE = 0.45, 0.6
"""Shares of the time between which the provider fails many calls of language models."""
_FILE_BYTES = 96_000


class Load:
    """Calls of the studio's keys, by activity."""

    def __init__(self, client: Client, hook: str) -> None:
        self._client, self._send, self._hook = client, client.send, hook
        self._tasks, self._files = deque[str](maxlen=50), deque[str](maxlen=20)
        self._draw = random.Random(7)  # noqa: S311 - sample data

    async def run(self, seconds: float) -> None:
        """Call for that long, then wait for what is under way."""
        rates: dict[Callable[[], Awaitable[Any]], float] = {
            # calls a second on average
            self._chat: 4.0,
            self._chat_cached: 1.5,
            lambda: self._client.ask("[[status=400]]", LARGE, "SHOP"): 0.4,
            self._moderate: 2.0,
            self._create_task: 0.9,
            # more than the key may send in a minute
            lambda: self._client.create_task("TRIALS", self._describe(FAST)): 1.5,
            self._poll: 3.0,
            self._fetch_video: 0.6,
            self._store_file: 0.5,
            self._read_file: 0.6,
            self._upload_parts: 0.05,
            lambda: self._client.run_batch(
                "NIGHTLY", [self._prompt()] * self._draw.randrange(60, 200)
            ): 0.03,
            self._call_tools: 0.5,
            lambda: self._send("GET", "/v1/models", "NOBODY"): 0.3,
            lambda: self._send("GET", f"{TASKS}/task_{'a' * 26}"): 0.3,
        }
        slots = asyncio.Semaphore(MAX_UNDER_WAY)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._break_provider(seconds))
            for work, rate in rates.items():
                group.create_task(self._repeat(work, rate, seconds, slots))

    async def _repeat(
        self,
        work: Callable[[], Awaitable[Any]],
        rate: float,
        seconds: float,
        slots: asyncio.Semaphore,
    ) -> None:
        async def call() -> None:
            async with slots:
                await work()

        begin, shift = time.monotonic(), self._draw.uniform(0, 0.8)
        async with asyncio.TaskGroup() as group:
            while (passed := time.monotonic() - begin) < seconds:
                wave = 1 + 0.6 * math.sin(2 * math.pi * (passed / WAVE_SECONDS + shift))
                await asyncio.sleep(self._draw.expovariate(rate * wave))
                group.create_task(call())

    async def _break_provider(self, seconds: float) -> None:
        failure = {"behaviour": "status", "status": 503}
        refusal = {"behaviour": "fail", "code": "content_policy", "message": "Refused."}
        usual: list[dict[str, Any]] = [
            {**refusal, "probability": 0.06},
            *(
                {**failure, "probability": share, "match": {"on": on}}
                for on, share in (("generate", 0.02), ("submit", 0.03), ("poll", 0.02))
            ),
        ]
        outage = {**failure, "probability": 0.45, "match": {"on": "generate"}}
        begin, end = OUTAGE
        for rules, share in ((usual, begin), ([outage, *usual], end - begin), (usual, 0.0)):
            await self._client.set_faults(rules)
            await asyncio.sleep(seconds * share)

    def _prompt(self) -> str:
        return self._draw.choice(PROMPTS)

    def _describe(self, model: str) -> dict[str, Any]:
        return describe_task(model, self._prompt(), self._draw.randrange(3, 9))

    async def _chat(self) -> None:
        first, words = self._draw.uniform(0.02, 0.25), self._draw.randrange(20, 120)
        text = f"{self._prompt()} [[first={first:.2f}]] [[pause=0.005]] [[words={words}]]"
        model = self._draw.choice([LARGE, LARGE, SMALL])
        await self._client.ask(text, model, "SHOP", stream=self._draw.random() < 0.6)

    async def _chat_cached(self) -> None:
        text = f"{self._prompt()} [[words={self._draw.randrange(12, 20)}]]"
        await self._client.ask(text, SMALL, "NIGHTLY")

    async def _moderate(self) -> None:
        body = {"model": MODERATION, "input": self._draw.choices(PROMPTS, k=3)}
        await self._send("POST", "/v1/moderations", "NIGHTLY", json=body)

    async def _create_task(self) -> None:
        hook = self._hook if self._draw.random() < 0.7 else None
        if task := await self._client.create_task("SHOP", self._describe(VIDEO), hook):
            self._tasks.append(task)

    async def _poll(self) -> None:
        if self._tasks:
            await self._send("GET", f"{TASKS}/{self._draw.choice(self._tasks)}")

    async def _fetch_video(self) -> None:
        if self._tasks:
            task = await self._send("GET", f"{TASKS}/{self._tasks[0]}")
            for video in task.get("videos", ()):
                # the address alone opens it: the media host never sees a key
                async with self._client.session.get(video["url"]) as answer:
                    await answer.read()

    async def _store_file(self) -> None:
        data, about = self._draw.randbytes(self._draw.randrange(_FILE_BYTES)), "user_data"
        if file := await self._client.send_file("/v1/files", "SHOP", "file", data, purpose=about):
            self._files.append(file)
        if len(self._files) == self._files.maxlen and self._draw.random() < 0.5:
            await self._send("DELETE", f"/v1/files/{self._files.popleft()}")

    async def _read_file(self) -> None:
        if self._files:
            await self._send("GET", f"/v1/files/{self._draw.choice(self._files)}/content")

    async def _upload_parts(self) -> None:
        about = {"purpose": "user_data", "filename": "clip.bin", "bytes": 3 * _FILE_BYTES}
        about |= {"mime_type": "application/octet-stream"}
        path = f"/v1/uploads/{(await self._send('POST', '/v1/uploads', json=about)).get('id')}"
        data = self._draw.randbytes(_FILE_BYTES)
        send = self._client.send_file
        ids = [await send(f"{path}/parts", "SHOP", "data", data) for _ in range(3)]
        await self._send("POST", f"{path}/complete", json={"part_ids": ids})

    async def _call_tools(self) -> None:
        operation = {"service": "aurora", "action": "reference_to_video"}
        params = self._describe(VIDEO)
        task = {
            "model": params.pop("model"),
            "params": params,
            "idempotency_key": f"{uuid.uuid4()}",
        }
        tools: list[tuple[str, dict[str, Any]]] = [
            ("list_models", {}),
            ("get_task", {**operation, "task_id": self._tasks[-1] if self._tasks else ""}),
            ("create_task", {**operation, **task}),
        ]
        name, arguments = self._draw.choice(tools)
        called = {"method": "tools/call", "params": {"name": name, "arguments": arguments}}
        headers = {
            "MCP-Protocol-Version": "2025-11-25",
            "Accept": "application/json, text/event-stream",
        }
        body, base = {"jsonrpc": "2.0", "id": 1, **called}, self._client.config.mcp_url
        await self._send("POST", "/mcp", base=base, json=body, headers=headers)
