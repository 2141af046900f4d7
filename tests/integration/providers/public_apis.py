"""Public APIs as fake servers that answer in the shapes of their documentation.

`next_job` says what becomes of the next submission: `video`, `failure`, `refused` (the content is
refused), `busy` (the rate limit is hit once, then a video).
"""

import asyncio
import itertools
from abc import abstractmethod
from typing import Any

import aiohttp
from aiohttp import web

from tests.servers.providers import VIDEO
from tests.servers.server import WebServer

KEY = "public-api-key-5f1c"


class PublicApi(WebServer):
    """One API. Subclasses answer calls; a job is running at its first poll."""

    name: str
    """The folder below examples/providers."""
    model: str
    base_path = ""
    authorization: str
    failure: str
    """What a client reads of a failed job."""
    refusal: str
    """What a client reads of refused content."""
    can_cancel = True
    """Whether it has a call that cancels a job."""

    def __init__(self) -> None:
        super().__init__()
        self.next_job = "video"
        self.bodies: list[Any] = []
        """Bodies of the submissions that made a job, without the address to notify."""
        self.cancelled: list[str] = []
        self._jobs: dict[str, str] = {}
        self._polls: dict[str, int] = {}
        self._ids = itertools.count(1)

    def build(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/output/{name}", self._serve)
        app.router.add_route("*", "/{path:.*}", self._answer)
        return app

    @abstractmethod
    def submit(self, path: str, body: Any) -> web.Response:
        """The answer to a submission."""

    @abstractmethod
    def ask(self, method: str, path: str, query: dict[str, str]) -> web.Response:
        """The answer to any other call."""

    def make_job(self) -> str:
        """The id of a new job."""
        job = f"{self.name}{next(self._ids):06d}"
        self._jobs[job], self._polls[job] = self.next_job, 0
        return job

    def poll(self, job: str) -> str:
        """`running` at first, then what becomes of the job."""
        self._polls[job] += 1
        return "running" if self._polls[job] == 1 else self._jobs[job]

    def video(self, job: str) -> str:
        """The address of its output, on another host than the API's."""
        return f"http://localhost:{self.port}/output/{job}.mp4"

    async def _answer(self, request: web.Request) -> web.Response:
        assert request.headers.get("Authorization") == self.authorization
        path = request.path.removeprefix(self.base_path)
        if not request.can_read_body:
            return self.ask(request.method, path, dict(request.query))
        body = await request.json()
        made = len(self._jobs)
        answer = self.submit(path, body)
        self.bodies += [body] * (len(self._jobs) - made)
        return answer

    async def _serve(self, request: web.Request) -> web.Response:
        assert "Authorization" not in request.headers
        return web.Response(body=VIDEO, content_type="video/mp4")


class Replicate(PublicApi):
    """Predictions, with shapes from these pages.

    https://replicate.com/docs/reference/http.md (create, get, cancel),
    https://replicate.com/docs/topics/predictions/lifecycle.md (words of `status`),
    https://replicate.com/docs/topics/predictions/rate-limits.md (the 429),
    https://replicate.com/docs/topics/webhooks/receive-webhook (the notification).
    """

    name, model, base_path = "replicate", "seedance-1-lite", "/v1"
    authorization = f"Bearer {KEY}"
    failure = "Prediction failed to start."
    refusal = "The input or output was flagged as sensitive."

    def __init__(self) -> None:
        super().__init__()
        self._webhooks: dict[str, str] = {}
        self._errands: set[asyncio.Task[None]] = set()

    def submit(self, path: str, body: Any) -> web.Response:
        assert path == "/models/bytedance/seedance-1-lite/predictions"
        if self.next_job == "busy":
            self.next_job = "video"
            detail = "Request was throttled. Your rate limit resets in ~1s."
            return web.json_response({"detail": detail}, status=429, headers={"Retry-After": "1"})
        job = self.make_job()
        if "webhook" in body:
            assert body.pop("webhook_events_filter") == ["completed"]
            self._webhooks[job] = body.pop("webhook")
        return web.json_response(self._show(job, "starting"), status=201)

    def ask(self, method: str, path: str, query: dict[str, str]) -> web.Response:
        _, kind, job, *rest = path.split("/")
        assert kind == "predictions"
        if rest:
            assert (method, rest) == ("POST", ["cancel"])
            self.cancelled.append(job)
            return web.json_response(self._show(job, "canceled"))
        match self.poll(job):
            case "running":
                if job in self._webhooks:
                    errand = asyncio.get_running_loop().create_task(self._notify(job))
                    self._errands.add(errand)
                    errand.add_done_callback(self._errands.discard)
                return web.json_response(self._show(job, "processing"))
            case "video":
                return web.json_response(self._show(job, "succeeded", output=self.video(job)))
            case "refused":
                return web.json_response(self._show(job, "failed", error=self.refusal))
        return web.json_response(self._show(job, "failed", error=self.failure))

    async def _notify(self, job: str) -> None:
        """Tells that the job, running a moment ago, has ended: the gateway need not wait."""
        async with aiohttp.ClientSession() as client:
            await client.post(self._webhooks.pop(job), json=self._show(job, "succeeded"))

    def _show(self, job: str, status: str, **more: str) -> dict[str, Any]:
        url = f"https://api.replicate.com/v1/predictions/{job}"
        shown = {"id": job, "model": "bytedance/seedance-1-lite", "status": status}
        urls = {"get": url, "cancel": f"{url}/cancel"}
        return {**shown, "output": None, "error": None, "metrics": {}, "urls": urls, **more}


class Fal(PublicApi):
    """The queue, with shapes from these pages.

    https://fal.ai/docs/api-reference/inference-api (paths, 202 until COMPLETED),
    https://docs.fal.ai/documentation/model-apis/inference/queue (words of `status`),
    https://fal.ai/docs/errors (`detail` of refused content, 422),
    https://docs.fal.ai/documentation/model-apis/request-errors (`detail` and `error_type`),
    https://fal.ai/docs/inference-api/queue/cancel (answers of a cancellation).
    """

    name, model, base_path = "fal", "fal-seedance-lite", "/fal-ai/bytedance"
    authorization = f"Key {KEY}"
    failure = "Request timed out"
    refusal = "The content was flagged by a content checker."

    def submit(self, path: str, body: Any) -> web.Response:
        assert path == "/seedance/v1/lite/reference-to-video"
        if self.next_job == "busy":
            self.next_job = "video"
            answer = {"detail": "Too many requests"}
            return web.json_response(answer, status=429, headers={"Retry-After": "1"})
        job = self.make_job()
        url = f"https://queue.fal.run/fal-ai/bytedance/requests/{job}"
        addresses = {"response_url": url, "status_url": f"{url}/status"}
        return web.json_response(
            {"status": "IN_QUEUE", "request_id": job, "queue_position": 0, **addresses}
        )

    def ask(self, method: str, path: str, query: dict[str, str]) -> web.Response:
        _, kind, job, *rest = path.split("/")
        assert kind == "requests"
        if rest == ["status"]:
            running = self.poll(job) == "running"
            word = "IN_PROGRESS" if running else "COMPLETED"
            return web.json_response(
                {"status": word, "request_id": job}, status=202 if running else 200
            )
        if rest:
            assert (method, rest) == ("PUT", ["cancel"])
            self.cancelled.append(job)
            return web.json_response({"status": "ALREADY_COMPLETED"}, status=400)
        match self._jobs[job]:
            case "video":
                video = {"url": self.video(job), "content_type": "video/mp4"}
                return web.json_response({"video": video, "seed": 42})
            case "refused":
                kind = "content_policy_violation"
                error = {"loc": ["body", "prompt"], "msg": self.refusal, "type": kind}
                return web.json_response({"detail": [error]}, status=422)
        failure = {"detail": self.failure, "error_type": "request_timeout"}
        return web.json_response(failure, status=504)


class MiniMax(PublicApi):
    """Video generation, with shapes from these pages.

    https://platform.minimax.io/docs/api-reference/video-generation-t2v.md (create),
    https://platform.minimax.io/docs/api-reference/video/generation/api/openapi.json (query, file),
    https://platform.minimax.io/docs/api-reference/errorcode.md (codes of `base_resp`).
    """

    name, model, base_path = "minimax", "minimax-s2v-01", "/v1"
    can_cancel = False
    authorization = f"Bearer {KEY}"
    failure = "unknown error"
    refusal = "input new_sensitive"

    def submit(self, path: str, body: Any) -> web.Response:
        assert path == "/video_generation"
        if self.next_job == "busy":
            self.next_job = "video"
            return self._reply({"task_id": ""}, 1002, "rate limit")
        if self.next_job == "refused":
            return self._reply({"task_id": ""}, 1026, self.refusal)
        return self._reply({"task_id": self.make_job()})

    def ask(self, method: str, path: str, query: dict[str, str]) -> web.Response:
        if path == "/files/retrieve":
            job = query["file_id"].removeprefix("file-")
            file = {"file_id": query["file_id"], "bytes": 0, "filename": "output_aigc.mp4"}
            return self._reply({"file": {**file, "download_url": self.video(job)}})
        assert path == "/query/video_generation"
        job = query["task_id"]
        match self.poll(job):
            case "running":
                return self._reply({"task_id": job, "status": "Processing", "file_id": ""})
            case "video":
                size = {"video_width": 1280, "video_height": 720}
                return self._reply(
                    {"task_id": job, "status": "Success", "file_id": f"file-{job}", **size}
                )
        return self._reply({"task_id": job, "status": "Fail", "file_id": ""}, 1000, self.failure)

    @staticmethod
    def _reply(answer: dict[str, Any], code: int = 0, text: str = "success") -> web.Response:
        base = {"status_code": code, "status_msg": text}
        return web.json_response({**answer, "base_resp": base})


class Vllm(WebServer):
    """Chat completions of vLLM, with shapes from this page.

    https://docs.vllm.ai/en/latest/serving/openai_compatible_server.html
    """

    def build(self) -> web.Application:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self._complete)
        return app

    async def _complete(self, request: web.Request) -> web.Response:
        assert request.headers["Authorization"] == f"Bearer {KEY}"
        body = await request.json()
        message = {"role": "assistant", "content": "Hello!", "tool_calls": []}
        choice = {"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}
        usage = {"prompt_tokens": 1000, "completion_tokens": 10, "total_tokens": 1010}
        return web.json_response(
            {
                "id": "chatcmpl-1",
                "object": "chat.completion",
                "created": 1790000000,
                "model": body["model"],
                "choices": [choice],
                "usage": usage,
            }
        )
