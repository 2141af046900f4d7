"""Varied load on a local run: every surface, with refusals, faults of the provider, and waves.

It is bounded in time and in calls that are under way, and goes to loopback alone.
"""

import asyncio
import json
import math
import random
import time
import uuid
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from tools.pictures.studio import FAST, LARGE, MODERATION, PROMPTS, SMALL, VIDEO, Studio

from gateway_cli.local.config import LocalConfig

MOST_UNDER_WAY = 64
WAVE_SECONDS = 150.0
OUTAGE = 0.45, 0.6
"""Shares of the time between which the provider fails many calls of language models."""
_FAILING = 0.45
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
        self._tasks: deque[str] = deque(maxlen=50)
        self._files: deque[str] = deque(maxlen=20)
        self._draw = random.Random(7)  # noqa: S311 - sample data
        self.statuses: Counter[int] = Counter()

    async def run(self, seconds: float) -> None:
        """Call for that long, then wait for what is under way."""
        activities: list[tuple[float, Callable[[], Awaitable[None]]]] = [
            # calls a second on average
            (4.0, self._chat),
            (1.5, self._chat_cached),
            (0.4, self._chat_in_vain),
            (2.0, self._moderate),
            (0.9, self._create_task),
            (1.5, self._try_out),
            (3.0, self._poll),
            (0.6, self._fetch_video),
            (0.5, self._store_file),
            (0.6, self._read_file),
            (0.05, self._upload_parts),
            (0.03, self._run_batch),
            (0.5, self._call_tools),
            (0.3, self._call_unknown),
        ]
        slots = asyncio.Semaphore(MOST_UNDER_WAY)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._break_provider(seconds))
            for rate, work in activities:
                group.create_task(self._repeat(work, rate, seconds, slots))

    async def _repeat(
        self,
        work: Callable[[], Awaitable[None]],
        rate: float,
        seconds: float,
        slots: asyncio.Semaphore,
    ) -> None:
        async def once() -> None:
            async with slots:
                await work()

        begin, shift = time.monotonic(), self._draw.uniform(0, 0.8)
        async with asyncio.TaskGroup() as group:
            while (passed := time.monotonic() - begin) < seconds:
                wave = 1 + 0.6 * math.sin(2 * math.pi * (passed / WAVE_SECONDS + shift))
                await asyncio.sleep(self._draw.expovariate(rate * wave))
                group.create_task(once())

    async def _break_provider(self, seconds: float) -> None:
        begin, end = OUTAGE
        rule = {"behaviour": "status", "status": 503, "probability": _FAILING}
        refused = {"behaviour": "fail", "code": "content_policy", "message": "Refused."}
        faults = [
            {**refused, "probability": 0.06},
            *(
                {**rule, "probability": share, "match": {"on": on}}
                for on, share in (("generate", 0.02), ("submit", 0.03), ("poll", 0.02))
            ),
        ]
        await self._control(faults)
        await asyncio.sleep(seconds * begin)
        await self._control([{**rule, "match": {"on": "generate"}}, *faults])
        await asyncio.sleep(seconds * (end - begin))
        await self._control(faults)

    async def _control(self, rules: list[dict[str, Any]]) -> None:
        url = f"{self._config.simulator_url}/control"
        async with self._session.put(url, json={"rules": rules}) as answer:
            answer.raise_for_status()

    async def _send(
        self, method: str, path: str, key: str = "SHOP", base: str = "", **sent: Any
    ) -> Any:
        """The JSON of an answer, an empty object for another or a refusal."""
        secret = self._keys.get(key, "sk-unknown1" + "x" * 32)
        headers = {"Authorization": f"Bearer {secret}", **sent.pop("headers", {})}
        url = f"{base or self._config.base_url}{path}"
        async with self._session.request(method, url, headers=headers, **sent) as answer:
            raw = await answer.read()
            self.statuses[answer.status] += 1
            is_json = answer.content_type == "application/json" and answer.status < 300
            return json.loads(raw) if is_json else {}

    async def _chat(self) -> None:
        model = self._draw.choice([LARGE, LARGE, SMALL])
        words = self._draw.randrange(20, 120)
        text = f"{self._draw.choice(PROMPTS)} [[first={self._draw.uniform(0.02, 0.25):.2f}]]"
        body = {
            "model": model,
            "stream": self._draw.random() < 0.6,
            "messages": [{"role": "user", "content": f"{text} [[pause=0.005]] [[words={words}]]"}],
        }
        await self._send("POST", _CHAT, json=body)

    async def _chat_cached(self) -> None:
        text = f"{self._draw.choice(PROMPTS)} [[words={self._draw.randrange(12, 20)}]]"
        body = {"model": SMALL, "messages": [{"role": "user", "content": text}]}
        await self._send("POST", _CHAT, "NIGHTLY", json=body)

    async def _chat_in_vain(self) -> None:
        body = {"model": LARGE, "messages": [{"role": "user", "content": "[[status=400]]"}]}
        await self._send("POST", _CHAT, json=body)

    async def _moderate(self) -> None:
        texts = [self._draw.choice(PROMPTS) for _ in range(3)]
        await self._send(
            "POST", "/v1/moderations", "NIGHTLY", json={"model": MODERATION, "input": texts}
        )

    async def _create_task(self) -> None:
        hook = {"callback_url": self._hook} if self._draw.random() < 0.7 else {}
        made = await self._send("POST", _TASKS, json={**self._describe_task(VIDEO), **hook})
        if "id" in made:
            self._tasks.append(made["id"])

    async def _try_out(self) -> None:
        """More than the key may send in a minute."""
        await self._send("POST", _TASKS, "TRIALS", json=self._describe_task(FAST))

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
        form = aiohttp.FormData({"purpose": "user_data"})
        data = self._draw.randbytes(self._draw.randrange(_FILE_BYTES))
        form.add_field("file", data, filename="reference.bin")
        made = await self._send("POST", "/v1/files", data=form)
        if "id" not in made:
            return
        self._files.append(made["id"])
        if len(self._files) == self._files.maxlen and self._draw.random() < 0.5:
            await self._send("DELETE", f"/v1/files/{self._files.popleft()}")

    async def _read_file(self) -> None:
        if self._files:
            await self._send("GET", f"/v1/files/{self._draw.choice(self._files)}/content")

    async def _upload_parts(self) -> None:
        parts = [self._draw.randbytes(_FILE_BYTES) for _ in range(3)]
        about = {"purpose": "user_data", "filename": "clip.bin", "bytes": 3 * _FILE_BYTES}
        about |= {"mime_type": "application/octet-stream"}
        upload = await self._send("POST", "/v1/uploads", json=about)
        if "id" not in upload:
            return
        path, ids = f"/v1/uploads/{upload['id']}", []
        for part in parts:
            form = aiohttp.FormData()
            form.add_field("data", part, filename="part")
            ids.append((await self._send("POST", f"{path}/parts", data=form)).get("id"))
        await self._send("POST", f"{path}/complete", json={"part_ids": ids})

    async def _run_batch(self) -> None:
        body = {"model": MODERATION, "input": self._draw.choice(PROMPTS)}
        lines = [
            {"custom_id": f"{n}", "method": "POST", "url": "/v1/moderations", "body": body}
            for n in range(self._draw.randrange(60, 200))
        ]
        form = aiohttp.FormData({"purpose": "batch"})
        data = "\n".join(map(json.dumps, lines)).encode()
        form.add_field("file", data, filename="captions.jsonl")
        file = await self._send("POST", "/v1/files", "NIGHTLY", data=form)
        if "id" in file:
            about = {"input_file_id": file["id"], "endpoint": "/v1/moderations"}
            about |= {"completion_window": "24h"}
            await self._send("POST", "/v1/batches", "NIGHTLY", json=about)

    async def _call_tools(self) -> None:
        name, arguments = self._draw.choice(
            [
                ("list_models", {}),
                ("get_task", {**_OPERATION, "task_id": self._tasks[-1] if self._tasks else ""}),
                ("create_task", self._describe_tool_task()),
            ]
        )
        body = {
            "jsonrpc": "2.0",
            "id": 1,
            "method": "tools/call",
            "params": {"name": name, "arguments": arguments},
        }
        headers = {"MCP-Protocol-Version": "2025-11-25"}
        headers["Accept"] = "application/json, text/event-stream"
        url = self._config.mcp_url
        await self._send("POST", "/mcp", base=url, json=body, headers=headers)

    def _describe_tool_task(self) -> dict[str, Any]:
        params = self._describe_task(VIDEO)
        return {
            **_OPERATION,
            "model": params.pop("model"),
            "idempotency_key": str(uuid.uuid4()),
            "params": params,
        }

    async def _call_unknown(self) -> None:
        """A key that there is not, and a task that there is not."""
        await self._send("GET", "/v1/models", "NOBODY")
        await self._send("GET", f"{_TASKS}/task_{'a' * 26}")


@asynccontextmanager
async def open_load(config: LocalConfig, studio: Studio, hook: str) -> AsyncIterator[Load]:
    """The load with its connections."""
    timeout = aiohttp.ClientTimeout(total=60)
    connector = aiohttp.TCPConnector(limit=MOST_UNDER_WAY)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
        yield Load(config, studio, hook, session)
