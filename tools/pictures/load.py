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
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import aiohttp

from gateway_cli.local.config import LocalConfig

VIDEO, FAST = "aurora-video", "aurora-video-fast"
LARGE, SMALL = "quill-large", "quill-small"
MODERATION = "sim-moderation"
TASKS = "/api/v1/aurora/reference_to_video"
PROMPTS = (
    "A paper boat sails across a calm lake at sunrise",
    "A ceramic cup turns slowly on an oak table, soft window light",
    "A red bicycle leans against a blue wall, leaves drift past",
    "A lighthouse at dawn, waves roll in, gulls overhead",
    "A loaf of bread rises in the oven, time lapse",
    "A hand folds a paper crane, close up",
    "A tram passes through a snowy street in the evening",
    "A hot-air balloon lifts off above a meadow in mist",
)
SLOW = "A slow pan over a mountain range at golden hour"
"""The prompt of tasks that run for ten minutes."""
MAX_UNDER_WAY = 64
WAVE_SECONDS = 150.0
OUTAGE = 0.45, 0.6
"""Shares of the time between which the provider fails many calls of language models."""
ACCEPT = "application/json, text/event-stream"
_FILE_BYTES = 96_000
_REFUSAL = {"behaviour": "fail", "code": "content_policy", "message": "Refused."}
_FAILURE = {"behaviour": "status", "status": 503}
_USUAL = (
    {"behaviour": "seconds", "seconds": 600, "match": {"prompt_contains": SLOW}},
    {**_REFUSAL, "probability": 0.06},
    {**_FAILURE, "probability": 0.02, "match": {"on": "generate"}},
    {**_FAILURE, "probability": 0.03, "match": {"on": "submit"}},
    {**_FAILURE, "probability": 0.02, "match": {"on": "poll"}},
)


class Load:
    """Calls with several keys, by their names; a name that has none sends an unknown key.

    Callbacks of tasks go to `hook`. A refusal is no error.
    """

    def __init__(
        self,
        config: LocalConfig,
        keys: Mapping[str, str],
        session: aiohttp.ClientSession,
        hook: str,
    ) -> None:
        self._config, self._keys, self._session, self._hook = config, keys, session, hook
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
            lambda: self.create_task("SHOP", VIDEO): 0.9,
            # more than the key may send in a minute
            lambda: self.create_task("TRIALS", FAST): 1.5,
            lambda: self._ask(f"{self._prompt()} [[words=9]]", LARGE, "TRIALS"): 0.2,
            lambda: self._read(TASKS, self._tasks): 3.0,
            self._fetch_video: 0.6,
            self._store_file: 0.5,
            lambda: self._read("/v1/files", self._files, "/content"): 0.6,
            self._upload_parts: 0.05,
            self._run_batch: 0.03,
            self._call_tools: 0.5,
            lambda: self.send("GET", "/v1/models", "NOBODY"): 0.3,
            lambda: self.send("GET", f"{TASKS}/task_{'a' * 26}"): 0.3,
        }
        slots = asyncio.Semaphore(MAX_UNDER_WAY)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._break_provider(seconds))
            for work, rate in rates.items():
                group.create_task(self._repeat(work, rate, seconds, slots))

    async def send(
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

    async def create_task(self, key: str, model: str, prompt: str = "") -> None:
        """Create a task; the account's shop has its id."""
        body = {**self._describe(model, prompt), "callback_url": self._hook}
        headers = {"Idempotency-Key": str(uuid.uuid4())}
        task = await self.send("POST", TASKS, key, json=body, headers=headers)
        if task and key == "SHOP":
            self._tasks.append(task["id"])

    async def find_completed(self) -> str:
        """Return the id of a task of the shop that has a video, empty if there is none."""
        for task in self._tasks:
            if (await self.send("GET", f"{TASKS}/{task}")).get("videos"):
                return task
        return ""

    async def _repeat(
        self, work: Callable[[], Awaitable[Any]], rate: float, seconds: float, slots: Any
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
        outage = {**_FAILURE, "probability": 0.45, "match": {"on": "generate"}}
        begin, end = OUTAGE
        for more, share in (((), begin), ((outage,), end - begin), ((), 0.0)):
            rules = {"rules": [*more, *_USUAL]}
            await self.send("PUT", "/control", base=self._config.simulator_url, json=rules)
            await asyncio.sleep(seconds * share)

    def _prompt(self) -> str:
        return self._draw.choice(PROMPTS)

    def _describe(self, model: str, prompt: str = "") -> dict[str, Any]:
        return {
            "model": model,
            "prompt": prompt or self._prompt(),
            "reference_image_urls": ["https://northwind.example/references/17.png"],
            "duration_seconds": self._draw.randrange(3, 9),
        }

    async def _ask(self, text: str, model: str, key: str, **options: Any) -> None:
        body = {"model": model, "messages": [{"role": "user", "content": text}], **options}
        await self.send("POST", "/v1/chat/completions", key, json=body)

    async def _chat(self) -> None:
        first, words = self._draw.uniform(0.02, 0.25), self._draw.randrange(20, 120)
        text = f"{self._prompt()} [[first={first:.2f}]] [[pause=0.005]] [[words={words}]]"
        model = self._draw.choice([LARGE, LARGE, SMALL])
        await self._ask(text, model, "SHOP", stream=self._draw.random() < 0.6)

    async def _chat_cached(self) -> None:
        text = f"{self._prompt()} [[words={self._draw.randrange(12, 20)}]]"
        await self._ask(text, SMALL, "NIGHTLY")

    async def _moderate(self) -> None:
        body = {"model": MODERATION, "input": self._draw.choices(PROMPTS, k=3)}
        await self.send("POST", "/v1/moderations", "NIGHTLY", json=body)

    async def _read(self, path: str, ids: Sequence[str], rest: str = "") -> None:
        if ids:
            await self.send("GET", f"{path}/{self._draw.choice(ids)}{rest}")

    async def _fetch_video(self) -> None:
        if self._tasks:
            task = await self.send("GET", f"{TASKS}/{self._tasks[0]}")
            for video in task.get("videos", ()):
                # the address alone opens it: the media host never sees a key
                async with self._session.get(video["url"]) as answer:
                    await answer.read()

    async def _send_file(
        self, path: str, data: bytes, key: str = "SHOP", field: str = "file", **about: str
    ) -> str:
        """Return the id of what a form with a file makes, empty after a refusal."""
        form = aiohttp.FormData(about)
        form.add_field(field, data, filename="captions.jsonl")
        return str((await self.send("POST", path, key, data=form)).get("id", ""))

    async def _store_file(self) -> None:
        data = self._draw.randbytes(self._draw.randrange(_FILE_BYTES))
        if file := await self._send_file("/v1/files", data, purpose="user_data"):
            self._files.append(file)
        if len(self._files) == self._files.maxlen and self._draw.random() < 0.5:
            await self.send("DELETE", f"/v1/files/{self._files.popleft()}")

    async def _upload_parts(self) -> None:
        about = {"purpose": "user_data", "filename": "clip.bin", "bytes": 3 * _FILE_BYTES}
        about |= {"mime_type": "application/octet-stream"}
        path = f"/v1/uploads/{(await self.send('POST', '/v1/uploads', json=about)).get('id')}"
        data = self._draw.randbytes(_FILE_BYTES)
        ids = [await self._send_file(f"{path}/parts", data, field="data") for _ in range(3)]
        await self.send("POST", f"{path}/complete", json={"part_ids": ids})

    async def _run_batch(self) -> None:
        url, lines = "/v1/moderations", []
        for number in range(self._draw.randrange(60, 200)):
            body = {"model": MODERATION, "input": self._prompt()}
            lines.append({"custom_id": f"{number}", "method": "POST", "url": url, "body": body})
        data = "\n".join(map(json.dumps, lines)).encode()
        file = await self._send_file("/v1/files", data, "NIGHTLY", purpose="batch")
        batch = {"input_file_id": file, "endpoint": url, "completion_window": "24h"}
        await self.send("POST", "/v1/batches", "NIGHTLY", json=batch)

    async def _call_tools(self) -> None:
        operation = {"service": "aurora", "action": "reference_to_video"}
        params, key = self._describe(VIDEO), f"{uuid.uuid4()}"
        task = {"model": params.pop("model"), "params": params, "idempotency_key": key}
        tools: list[tuple[str, dict[str, Any]]] = [
            ("list_models", {}),
            ("get_task", {**operation, "task_id": self._tasks[-1] if self._tasks else ""}),
            ("create_task", {**operation, **task}),
        ]
        name, arguments = self._draw.choice(tools)
        called = {"method": "tools/call", "params": {"name": name, "arguments": arguments}}
        headers = {"MCP-Protocol-Version": "2025-11-25", "Accept": ACCEPT}
        body, base = {"jsonrpc": "2.0", "id": 1, **called}, self._config.mcp_url
        await self.send("POST", "/mcp", base=base, json=body, headers=headers)
