"""A client whose data of every kind lives through an upgrade and a rollback.

Runs in a pod of the cluster, on the gateway's own image. It makes data of each kind, and reads and
continues them after each step. At the end of a step it waits until it is told to go on. The last
line of its output says how much it has done.
"""

import asyncio
import hashlib
import json
import os
import time
import uuid
from pathlib import Path

import aiohttp

BASE = os.environ["GATEWAY_BASE_URL"]
KEY, MANAGEMENT_KEY = os.environ["GATEWAY_API_KEY"], os.environ["GATEWAY_MANAGEMENT_KEY"]
TASKS = "/api/v1/sim/reference_to_video"
TASK = {
    "model": "sim-q4-reference-to-video",
    "prompt": "A paper boat",
    "reference_image_urls": ["https://example.com/boat.png"],
}
MODERATION = {"model": "sim-moderation", "input": "a cat"}
CHAT = {"model": "sim-chat", "messages": [{"role": "user", "content": "Hello"}]}
LIMITS = {"limit_cents": 500, "limit_window": "weekly"}
FUNDS_MICROS = int(os.environ["LIVE_DATA_FUNDS_MICROS"])
PART = os.urandom(500_000)
LINES = 400
PATIENCE = 120.0
STEPS = ("made", "continued")
"""After the first the gateway is upgraded, after the second it is rolled back."""


class Client:
    """Calls of the gateway; one that nothing answers, or that is refused for now, is repeated."""

    def __init__(self, session):
        self._session = session

    async def call(self, method, path, *, key=KEY, form=None, headers=None, **given):
        """The JSON or the bytes of a response with 200, 201 or 202; AssertionError otherwise."""
        headers = {"Authorization": f"Bearer {key}", **(headers or {})}
        deadline = time.monotonic() + PATIENCE
        while True:
            if form is not None:
                given["data"] = make_form(form)
            try:
                async with self._session.request(
                    method, BASE + path, headers=headers, **given
                ) as answer:
                    status, raw = answer.status, await answer.read()
                    is_json = answer.content_type == "application/json"
            except (aiohttp.ClientError, OSError) as error:
                status, raw, is_json = 503, repr(error).encode(), False
            if status in (200, 201, 202):
                return json.loads(raw) if is_json else raw
            told = f"{method} {path}: {status} {raw[:500]!r}"
            assert status in (429, 503), told
            assert time.monotonic() < deadline, told
            print(f"again after {told}", flush=True)
            await asyncio.sleep(1.0)

    async def read_until(self, path, is_over, **given):
        """The document at `path`, once it is over."""
        deadline = time.monotonic() + PATIENCE
        while not is_over(document := await self.call("GET", path, **given)):
            assert time.monotonic() < deadline, document
            await asyncio.sleep(0.5)
        return document


def make_form(fields):
    """A multipart form; bytes go as a file."""
    form = aiohttp.FormData()
    for name, value in fields.items():
        filename = "file.txt" if isinstance(value, bytes) else None
        form.add_field(name, value, filename=filename)
    return form


class Data:
    """What has been made so far, and what is under way."""

    def __init__(self, client):
        self._client = client
        self._tasks = {}
        self._files = {}
        self._batches = []
        self._upload = ("", "")
        self._chats = 0
        self._task_micros = {}
        self._governing = {}

    async def make(self):
        """Data of each kind; a batch, an Upload and a task are under way at the end."""
        call = self._client.call
        await self._run_task(wait=True)
        await self.continue_work()
        for noun in ("keys", "guardrails"):
            made = await call(
                "POST",
                f"/api/v1/management/{noun}",
                key=MANAGEMENT_KEY,
                json={"name": "Kept", **LIMITS},
                headers={"Idempotency-Key": uuid.uuid4().hex},
            )
            self._governing[f"/api/v1/management/{noun}/{made['id']}"] = made

    async def continue_work(self):
        """A new file, task, Upload, batch and chat completion."""
        call = self._client.call
        content = os.urandom(200_000)
        file = await call("POST", "/v1/files", form={"purpose": "user_data", "file": content})
        self._files[file["id"]] = hashlib.sha256(content).hexdigest()
        declared = {
            "bytes": 2 * len(PART),
            "filename": "parts.txt",
            "mime_type": "text/plain",
            "purpose": "user_data",
        }
        upload = (await call("POST", "/v1/uploads", json=declared))["id"]
        part = await call("POST", f"/v1/uploads/{upload}/parts", form={"data": PART})
        self._upload = upload, part["id"]
        line = {"method": "POST", "url": "/v1/moderations", "body": MODERATION}
        lines = [json.dumps({"custom_id": str(n), **line}) for n in range(LINES)]
        content = "\n".join(lines).encode()
        file = await call("POST", "/v1/files", form={"purpose": "batch", "file": content})
        about = {
            "input_file_id": file["id"],
            "endpoint": "/v1/moderations",
            "completion_window": "24h",
        }
        self._batches.append((await call("POST", "/v1/batches", json=about))["id"])
        answer = await call("POST", "/v1/chat/completions", json=CHAT)
        assert answer["choices"][0]["message"]["content"], answer
        self._chats += 1
        await self._run_task(wait=False)

    async def check(self):
        """Everything made before is as it was, and what was under way can be ended."""
        call = self._client.call
        for key, task in self._tasks.items():
            again = await call("POST", TASKS, json=TASK, headers={"Idempotency-Key": key})
            assert again["id"] == task, again
            ended = await self._client.read_until(
                f"{TASKS}/{task}", lambda body: body["status"] in ("completed", "failed")
            )
            assert ended["status"] == "completed", ended
            self._task_micros[task] = round(ended["usage"]["cost"] * 1_000_000)
        for file, digest in self._files.items():
            content = await call("GET", f"/v1/files/{file}/content")
            assert hashlib.sha256(content).hexdigest() == digest, file
        upload, first = self._upload
        second = await call("POST", f"/v1/uploads/{upload}/parts", form={"data": PART})
        ended = await call(
            "POST", f"/v1/uploads/{upload}/complete", json={"part_ids": [first, second["id"]]}
        )
        self._files[ended["file"]["id"]] = hashlib.sha256(PART + PART).hexdigest()
        for batch in self._batches:
            ended = await self._client.read_until(
                f"/v1/batches/{batch}", lambda body: body["status"] in ("completed", "failed")
            )
            counts = {"total": LINES, "completed": LINES, "failed": 0}
            assert ended["request_counts"] == counts, ended
            results = await call("GET", f"/v1/files/{ended['output_file_id']}/content")
            found = [json.loads(line)["custom_id"] for line in results.splitlines()]
            assert found == [str(n) for n in range(LINES)], batch
        for path, made in self._governing.items():
            kept = await call("GET", path, key=MANAGEMENT_KEY)
            assert {name: kept[name] for name in LIMITS} == LIMITS, (kept, made)
        await self._check_money()

    async def _check_money(self):
        """Usage and balance are the sum of what was made; usage follows within seconds."""

        def is_complete(report):
            rows = {row["model"]: row for row in report["data"]}
            requests = {model: row["requests"] for model, row in rows.items()}
            return requests == {
                TASK["model"]: len(self._tasks),
                CHAT["model"]: self._chats,
                MODERATION["model"]: LINES * len(self._batches),
            }

        path = "/api/v1/management/usage?group_by=model"
        report = await self._client.read_until(path, is_complete, key=MANAGEMENT_KEY)
        costs = {row["model"]: row["cost_micros"] for row in report["data"]}
        assert costs[TASK["model"]] == sum(self._task_micros.values()), costs
        balance = await self._client.call("GET", "/api/v1/me/balance")
        assert balance["balance_cents"] == (FUNDS_MICROS - sum(costs.values())) // 10_000, (
            balance,
            costs,
        )

    async def _run_task(self, *, wait):
        key = uuid.uuid4().hex
        task = await self._client.call("POST", TASKS, json=TASK, headers={"Idempotency-Key": key})
        self._tasks[key] = task["id"]
        if wait:
            path = f"{TASKS}/{task['id']}"
            await self._client.read_until(path, lambda body: body["status"] == "completed")

    def count(self):
        return {
            "tasks": len(self._tasks),
            "files": len(self._files),
            "batches": len(self._batches),
            "chat completions": self._chats,
        }


async def pause(step):
    """Tell that a step is done, and wait to go on."""
    print(f"reached {step}", flush=True)
    deadline = time.monotonic() + 600.0
    while not Path(f"/tmp/{step}").exists():
        assert time.monotonic() < deadline, "nobody says to go on"
        await asyncio.sleep(0.5)


async def main():
    timeout = aiohttp.ClientTimeout(total=60, sock_connect=5)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        data = Data(Client(session))
        await data.make()
        for step in STEPS:
            await pause(step)
            await data.check()
            await data.continue_work()
        await data.check()
        print(json.dumps(data.count()), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
