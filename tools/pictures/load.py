"""Varied load on a local run: every surface, with refusals, faults of the provider, and waves.

It is bounded in time and in calls that are under way, and goes to loopback alone.
"""

import asyncio
import json
import math
import random
import time
import uuid
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from tools.pictures.studio import FAST, LARGE, MODERATION, PROMPTS, SMALL, VIDEO, Studio, set_faults

from gateway_cli.local.config import LocalConfig

MAX_UNDER_WAY = 64
WAVE_SECONDS = 150.0
OUTAGE = 0.45, 0.6
"""Shares of the time between which the provider fails many calls of language models."""
_OPERATION = {"service": "aurora", "action": "reference_to_video"}
_CHAT, _TASKS = "/v1/chat/completions", "/api/v1/aurora/reference_to_video"
_FILE_BYTES = 96_000


class Load:
    """Calls of the studio's keys, by activity."""

    def __init__(
        self, config: LocalConfig, studio: Studio, hook: str, session: aiohttp.ClientSession
    ) -> None:
        self._config, self._hook, self._session = config, hook, session
        self._keys = {name: minted.plaintext for name, minted in studio.keys.items()}
        self._tasks, self._files = deque[str](maxlen=50), deque[str](maxlen=20)
        self._draw = random.Random(7)  # noqa: S311 - sample data

    async def run(self, seconds: float) -> None:
        """Call for that long, then wait for what is under way."""
        rates: dict[Callable[[], Awaitable[Any]], float] = {
            # calls a second on average
            self._chat: 4.0,
            self._chat_cached: 1.5,
            lambda: self._ask("[[status=400]]", LARGE, "SHOP"): 0.4,
            self._moderate: 2.0,
            self._create_task: 0.9,
            # more than the key may send in a minute
            lambda: self._send("POST", _TASKS, "TRIALS", json=self._describe_task(FAST)): 1.5,
            self._poll: 3.0,
            self._fetch_video: 0.6,
            self._store_file: 0.5,
            self._read_file: 0.6,
            self._upload_parts: 0.05,
            self._run_batch: 0.03,
            self._call_tools: 0.5,
            lambda: self._send("GET", "/v1/models", "NOBODY"): 0.3,
            lambda: self._send("GET", f"{_TASKS}/task_{'a' * 26}"): 0.3,
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
            await set_faults(self._config, rules)
            await asyncio.sleep(seconds * share)

    async def _send(
        self, method: str, path: str, key: str = "SHOP", base: str = "", **sent: Any
    ) -> Any:
        """Return the JSON of an answer, an empty object for another or a refusal."""
        secret = self._keys.get(key, "sk-unknown1" + "x" * 32)
        headers = {"Authorization": f"Bearer {secret}", **sent.pop("headers", {})}
        url = f"{base or self._config.base_url}{path}"
        async with self._session.request(method, url, headers=headers, **sent) as answer:
            raw = await answer.read()
            is_json = answer.content_type == "application/json" and answer.status < 300
            return json.loads(raw) if is_json else {}

    async def _send_file(self, path: str, key: str, field: str, data: bytes, **about: str) -> str:
        """Return the id of what a form with a file makes, empty after a refusal."""
        form = aiohttp.FormData(about)
        form.add_field(field, data, filename="captions.jsonl")
        return str((await self._send("POST", path, key, data=form)).get("id", ""))

    async def _ask(self, text: str, model: str, key: str, **options: Any) -> None:
        body = {"model": model, "messages": [{"role": "user", "content": text}], **options}
        await self._send("POST", _CHAT, key, json=body)

    async def _chat(self) -> None:
        first, words = self._draw.uniform(0.02, 0.25), self._draw.randrange(20, 120)
        prompt = self._draw.choice(PROMPTS)
        text = f"{prompt} [[first={first:.2f}]] [[pause=0.005]] [[words={words}]]"
        model = self._draw.choice([LARGE, LARGE, SMALL])
        await self._ask(text, model, "SHOP", stream=self._draw.random() < 0.6)

    async def _chat_cached(self) -> None:
        text = f"{self._draw.choice(PROMPTS)} [[words={self._draw.randrange(12, 20)}]]"
        await self._ask(text, SMALL, "NIGHTLY")

    async def _moderate(self) -> None:
        body = {"model": MODERATION, "input": self._draw.choices(PROMPTS, k=3)}
        await self._send("POST", "/v1/moderations", "NIGHTLY", json=body)

    async def _create_task(self) -> None:
        hook = {"callback_url": self._hook} if self._draw.random() < 0.7 else {}
        task = await self._send("POST", _TASKS, json={**self._describe_task(VIDEO), **hook})
        if "id" in task:
            self._tasks.append(task["id"])

    def _describe_task(self, model: str) -> dict[str, Any]:
        return {
            "model": model,
            "prompt": self._draw.choice(PROMPTS),
            "reference_image_urls": ["https://northwind.example/references/17.png"],
            "duration_seconds": self._draw.randrange(3, 9),
        }

    async def _poll(self) -> None:
        if self._tasks:
            await self._send("GET", f"{_TASKS}/{self._draw.choice(self._tasks)}")

    async def _fetch_video(self) -> None:
        if self._tasks:
            task = await self._send("GET", f"{_TASKS}/{self._tasks[0]}")
            for video in task.get("videos", ()):
                # the address alone opens it: the media host never sees a key
                async with self._session.get(video["url"]) as answer:
                    await answer.read()

    async def _store_file(self) -> None:
        data = self._draw.randbytes(self._draw.randrange(_FILE_BYTES))
        if file := await self._send_file("/v1/files", "SHOP", "file", data, purpose="user_data"):
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
        ids = [await self._send_file(f"{path}/parts", "SHOP", "data", data) for _ in range(3)]
        await self._send("POST", f"{path}/complete", json={"part_ids": ids})

    async def _run_batch(self) -> None:
        body = {"model": MODERATION, "input": self._draw.choice(PROMPTS)}
        lines = [
            {"custom_id": f"{n}", "method": "POST", "url": "/v1/moderations", "body": body}
            for n in range(self._draw.randrange(60, 200))
        ]
        data = "\n".join(map(json.dumps, lines)).encode()
        file = await self._send_file("/v1/files", "NIGHTLY", "file", data, purpose="batch")
        about = {"input_file_id": file, "endpoint": "/v1/moderations", "completion_window": "24h"}
        await self._send("POST", "/v1/batches", "NIGHTLY", json=about)

    async def _call_tools(self) -> None:
        params = self._describe_task(VIDEO)
        task = {"model": params.pop("model"), "params": params}
        tools: list[tuple[str, dict[str, Any]]] = [
            ("list_models", {}),
            ("get_task", {**_OPERATION, "task_id": self._tasks[-1] if self._tasks else ""}),
            ("create_task", {**_OPERATION, **task, "idempotency_key": str(uuid.uuid4())}),
        ]
        name, arguments = self._draw.choice(tools)
        called = {"method": "tools/call", "params": {"name": name, "arguments": arguments}}
        headers = {
            "MCP-Protocol-Version": "2025-11-25",
            "Accept": "application/json, text/event-stream",
        }
        body = {"jsonrpc": "2.0", "id": 1, **called}
        await self._send("POST", "/mcp", base=self._config.mcp_url, json=body, headers=headers)


@asynccontextmanager
async def open_load(config: LocalConfig, studio: Studio, hook: str) -> AsyncIterator[Load]:
    """Open the load with its connections."""
    timeout = aiohttp.ClientTimeout(total=60)
    connector = aiohttp.TCPConnector(limit=MAX_UNDER_WAY)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
        yield Load(config, studio, hook, session)
