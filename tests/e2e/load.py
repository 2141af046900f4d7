"""A client that creates and polls tasks until told to stop, and then tells what it was answered.

Runs alone in a pod of the cluster, on the gateway's own image, so that it reaches the Service as
any client in the cluster does. It repeats a create whose answer it did not get with the same
Idempotency-Key, as the contract tells clients to. `/tmp/stop` ends the creating; the summary is
the last line of its output.
"""

import asyncio
import json
import os
import time
import uuid
from collections import Counter
from pathlib import Path

import aiohttp

URL = os.environ["LOAD_URL"] + "/api/v1/sim/reference_to_video"
RATE = float(os.environ["LOAD_RATE"])
STOP = Path("/tmp/stop")
END_SECONDS = 180.0
MOST_TOLD = 10
"""Refusals of a kind that the summary has."""
BODY = {
    "model": "sim-q4-reference-to-video",
    "prompt": "A paper boat",
    "reference_image_urls": ["https://example.com/boat.png"],
}


class Load:
    """What was asked and answered so far."""

    def __init__(self, session):
        self.session = session
        self.answers = Counter()
        self.broken = Counter()
        self.slowest = 0.0
        self.ended = {}
        self.failures = {}
        self.refusals = []
        self.began = time.monotonic()

    async def call(self, method, url, body=None, key=None):
        """Status and JSON of one answer; None for a connection that broke."""
        headers = {"Idempotency-Key": key} if key else {}
        begin = time.monotonic()
        try:
            async with self.session.request(method, url, json=body, headers=headers) as answer:
                content = await answer.json(content_type=None)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            self.broken[f"{method} {type(error).__name__}"] += 1
            return None
        self.slowest = max(self.slowest, time.monotonic() - begin)
        told = f"{method} {answer.status}"
        if answer.status in (200, 202):
            self.answers[told] += 1
            return answer.status, content
        told += f" {content.get('error') if isinstance(content, dict) else content}"
        self.answers[told] += 1
        if self.answers[told] <= MOST_TOLD:
            seconds = round(time.monotonic() - self.began, 1)
            self.refusals.append(f"{seconds} s: {told} {url}")
        return answer.status, content

    async def run_task(self):
        """One task from its create to its end."""
        key, task_id = uuid.uuid4().hex, None
        deadline = time.monotonic() + END_SECONDS
        while task_id is None:
            answer = await self.call("POST", URL, BODY, key)
            if answer is not None and answer[0] == 202:
                task_id = answer[1]["id"]
                self.ended[task_id] = None
            elif time.monotonic() > deadline:
                return
            else:
                await asyncio.sleep(0.5)
        while time.monotonic() < deadline:
            answer = await self.call("GET", f"{URL}/{task_id}")
            if answer is not None and answer[0] == 200:
                status = answer[1]["status"]
                if status in ("completed", "failed"):
                    self.ended[task_id] = status
                    if status == "failed":
                        self.failures[task_id] = answer[1].get("error")
                    return
            await asyncio.sleep(1.0)

    async def run(self):
        """Creates at the rate until told to stop, then waits for every task."""
        running = set()
        due = time.monotonic()
        while not STOP.exists():
            task = asyncio.create_task(self.run_task())
            running.add(task)
            task.add_done_callback(running.discard)
            due += 1.0 / RATE
            await asyncio.sleep(max(0.0, due - time.monotonic()))
        await asyncio.gather(*running)

    def summary(self):
        return {
            "accepted": len(self.ended),
            "completed": sum(status == "completed" for status in self.ended.values()),
            "failed": self.failures,
            "unfinished": [name for name, status in self.ended.items() if status is None],
            "answers": dict(self.answers),
            "refusals": self.refusals,
            "broken": dict(self.broken),
            "slowest_answer_seconds": round(self.slowest, 2),
            "tasks": sorted(self.ended),
        }


async def main():
    headers = {"Authorization": "Bearer " + os.environ["LOAD_KEY"]}
    timeout = aiohttp.ClientTimeout(total=30, sock_connect=5)
    async with aiohttp.ClientSession(headers=headers, timeout=timeout) as session:
        load = Load(session)
        print("reached work", flush=True)
        await load.run()
    print(json.dumps(load.summary()), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
