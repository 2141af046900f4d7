"""Calls of the account in the pictures, as its clients make them."""

import json
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import aiohttp

from gateway_cli.local.config import LocalConfig
from gateway_cli.rest.access import poll_ended

VIDEO, FAST = "aurora-video", "aurora-video-fast"
LARGE, SMALL = "quill-large", "quill-small"
MODERATION = "sim-moderation"
MAX_SECONDS = 120.0
"""For a task or batch to end, and for the API process to see a new object."""
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


class Client:
    """A client with several keys, by name; a name that has none sends an unknown key."""

    def __init__(
        self, config: LocalConfig, keys: Mapping[str, str], session: aiohttp.ClientSession
    ) -> None:
        self.config, self.session, self._keys = config, session, keys

    async def send(
        self, method: str, path: str, key: str = "SHOP", base: str = "", **sent: Any
    ) -> Any:
        """Return the JSON of an answer, an empty object for another or a refusal."""
        secret = self._keys.get(key, "sk-unknown1" + "x" * 32)
        headers = {"Authorization": f"Bearer {secret}", **sent.pop("headers", {})}
        url = f"{base or self.config.base_url}{path}"
        async with self.session.request(method, url, headers=headers, **sent) as answer:
            raw = await answer.read()
            is_json = answer.content_type == "application/json" and answer.status < 300
            return json.loads(raw) if is_json else {}

    async def send_file(self, path: str, key: str, field: str, data: bytes, **about: str) -> str:
        """Return the id of what a form with a file makes, empty after a refusal."""
        form = aiohttp.FormData(about)
        form.add_field(field, data, filename="captions.jsonl")
        return str((await self.send("POST", path, key, data=form)).get("id", ""))

    async def ask(self, text: str, model: str, key: str, **options: Any) -> None:
        """Ask a language model."""
        body = {"model": model, "messages": [{"role": "user", "content": text}], **options}
        await self.send("POST", "/v1/chat/completions", key, json=body)

    async def create_task(self, key: str, body: Mapping[str, Any], hook: str | None = None) -> str:
        """Return the id of a new task, empty after a refusal."""
        asked = {**body, **({"callback_url": hook} if hook else {})}
        headers = {"Idempotency-Key": str(uuid.uuid4())}
        return str((await self.send("POST", TASKS, key, json=asked, headers=headers)).get("id", ""))

    async def run_batch(self, key: str, texts: Sequence[str]) -> str:
        """Return the path of a batch of moderations."""
        lines = [
            {
                "custom_id": f"caption-{number}",
                "method": "POST",
                "url": "/v1/moderations",
                "body": {"model": MODERATION, "input": text},
            }
            for number, text in enumerate(texts)
        ]
        data = "\n".join(map(json.dumps, lines)).encode()
        file = await self.send_file("/v1/files", key, "file", data, purpose="batch")
        about = {"input_file_id": file, "endpoint": "/v1/moderations", "completion_window": "24h"}
        return f"/v1/batches/{(await self.send('POST', '/v1/batches', key, json=about)).get('id')}"

    async def wait(self, path: str, key: str) -> None:
        """Wait until a task or batch has ended."""
        await poll_ended(lambda: self.send("GET", path, key), MAX_SECONDS, (0.5, 1.0))

    async def set_faults(self, rules: Sequence[Mapping[str, Any]]) -> None:
        """Replace the rules by which the simulated provider misbehaves."""
        await self.send("PUT", "/control", base=self.config.simulator_url, json={"rules": rules})


def describe_task(model: str, prompt: str, seconds: int = 5) -> dict[str, Any]:
    """Return the body of a task."""
    return {
        "model": model,
        "prompt": prompt,
        "reference_image_urls": ["https://northwind.example/references/17.png"],
        "duration_seconds": seconds,
    }
