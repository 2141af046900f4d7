"""Files and Uploads as clients send them, which repeat what failed as SDKs do."""

import asyncio
import hashlib
import json
import secrets
import time
from typing import Any

from tests.servers.world import Answer, Client, World, read_task, wait_for

PIECES = (b"first" * 1000, b"second" * 2000, b"third")
SOON = {
    "GATEWAY_RECONCILE_SECONDS": "0.5",
    "GATEWAY_SWEEP_SECONDS": "0.5",
    "GATEWAY_ORPHAN_SECONDS": "8",
    "GATEWAY_PROOF_SECONDS": "0.5",
    "GATEWAY_CLAIM_SECONDS": "8",
}
"""An operator that compares record, store and ledger all the time."""
UPLOAD = {"bytes": 5, "filename": "a", "mime_type": "text/plain", "purpose": "user_data"}
REPEATED = (429, 500, 502, 503, 504)


def encode_form(field: str, content: bytes, purpose: str = "") -> dict[str, Any]:
    """Headers and data of a form with one file, and with a purpose unless it is empty."""
    boundary = secrets.token_hex(8)
    start = f'--{boundary}\r\nContent-Disposition: form-data; name="'
    text = f'{start}purpose"\r\n\r\n{purpose}\r\n' if purpose else ""
    text += f'{start}{field}"; filename="a.bin"\r\n\r\n'
    return {
        "headers": {"Content-Type": f"multipart/form-data; boundary={boundary}"},
        "data": text.encode() + content + f"\r\n--{boundary}--\r\n".encode(),
    }


async def create_file(client: Client, content: bytes, purpose: str = "user_data") -> str:
    """The id of a new File; a 503 is repeated when it says so. ConnectionError."""
    deadline = time.monotonic() + 30
    while True:
        form = encode_form("file", content, purpose)
        answer = await client.request("POST", "/v1/files", **form)
        if answer.status != 503 or time.monotonic() > deadline:
            break
        await asyncio.sleep(float(answer.headers.get("Retry-After", "1")))
    assert answer.status == 200, answer.raw
    return str(answer.body["id"])


class Uploading:
    """A client of Uploads at one of several APIs, which repeats what got no final answer."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def choose_base(self) -> str | None:
        """The API for the next request; None for the world's own."""
        return None

    async def post(self, path: str, **options: Any) -> Answer:
        """The first answer that asks for no repetition (§0.4)."""

        async def attempt() -> Answer | None:
            try:
                answer = await self._client.request(
                    "POST", f"/v1/uploads{path}", base=self.choose_base(), **options
                )
            except ConnectionError:
                return None
            return None if answer.status in REPEATED else answer

        answer: Answer = await wait_for(attempt, seconds=60, what=f"an answer to {path}")
        return answer

    async def begin(self, **changes: Any) -> str:
        """The id of a new Upload."""
        key = {"Idempotency-Key": secrets.token_hex(8)}
        created = await self.post("", headers=key, body={**UPLOAD, **changes})
        assert created.status == 200, created.raw
        return str(created.body["id"])

    async def send_part(self, upload: str, piece: bytes) -> Answer:
        """The answer to a new part."""
        return await self.post(f"/{upload}/parts", **encode_form("data", piece))

    async def add(self, upload: str, piece: bytes) -> str:
        """The id of a new part."""
        answer = await self.send_part(upload, piece)
        assert answer.status == 200, answer.raw
        return str(answer.body["id"])

    async def complete(self, upload: str, *parts: str) -> dict[str, Any]:
        """The completed Upload."""
        answer = await self.post(f"/{upload}/complete", body={"part_ids": parts})
        assert answer.status == 200, answer.raw
        completed: dict[str, Any] = answer.body
        return completed

    async def upload(self, pieces: tuple[bytes, ...] = PIECES) -> dict[str, Any]:
        """An Upload of these pieces, whose completion is the same when it is repeated."""
        upload = await self.begin(bytes=sum(map(len, pieces)))
        parts = [await self.add(upload, piece) for piece in pieces]
        completed = await self.complete(upload, *parts)
        assert await self.complete(upload, *parts) == completed
        return completed


def list_files(world: World) -> list[dict[str, Any]]:
    """Name, Upload and keys of the bytes of each GatewayFile."""
    items = json.loads(world.run.kubectl("get", "gatewayfiles", "-o", "json"))["items"]
    return [
        {
            "name": item["metadata"]["name"],
            "upload": item["spec"]["request"].get("uploadName"),
            "keys": [segment["key"] for segment in item["spec"]["request"]["segments"]],
        }
        for item in items
    ]


async def fetch(client: Client, url: str, **headers: str) -> Answer:
    """The answer of the media host to a link."""
    base = client.world.env["GATEWAY_MEDIA_URL"]
    assert url.startswith(base)
    return await client.request("GET", url.removeprefix(base), base=base, key=None, headers=headers)


async def check_video(client: Client, task_id: str) -> None:
    """Check that the video of a task is there, whole, as the task's status describes it."""
    ended = (await client.wait_terminal([task_id]))[task_id]
    assert ended["status"] == "completed", ended
    video = read_task(client.world, task_id)["status"]["result"]["videos"][0]
    answer = await fetch(client, video["url"])
    assert answer.status == 200
    assert len(answer.raw) == video["bytes"] > 1000
    assert hashlib.sha256(answer.raw).hexdigest() == video["sha256"]
