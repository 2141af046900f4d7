"""The declarations of examples/providers, applied to a real API server, run tasks.

They are led to fake servers of the public APIs; `public_apis` cites the page of each shape.
"""

import re

import pytest
import yaml

from tests.integration.providers.public_apis import KEY, Fal, MiniMax, Replicate, Vllm
from tests.servers.guide import ROOT, lead_to
from tests.servers.providers import VIDEO
from tests.servers.tenants import read_balance, wait_status
from tests.servers.world import read_task, wait_for

pytestmark = pytest.mark.full

FILES = sorted(ROOT.glob("examples/providers/*/*.yaml"))
BODIES = {
    "replicate": {
        "input": {
            "prompt": "A lighthouse at dawn",
            "reference_images": ["https://example.com/lighthouse.png"],
            "aspect_ratio": "16:9",
            "resolution": "720p",
            "duration": 6,
        }
    },
    "fal": {
        "prompt": "A lighthouse at dawn",
        "reference_image_urls": ["https://example.com/lighthouse.png"],
        "aspect_ratio": "16:9",
        "resolution": "720p",
        "duration": "6",
    },
    "minimax": {
        "model": "S2V-01",
        "prompt": "A lighthouse at dawn",
        "subject_reference": [
            {"type": "character", "image": ["https://example.com/lighthouse.png"]}
        ],
    },
}
"""What each API is to get for the same task."""
COSTS = {"replicate": 300_000, "fal": 300_000, "minimax": 650_000}
"""Micro-dollars of six seconds, by the prices of the files."""


def read_objects(path):
    """The objects of a file by kind."""
    return {item["kind"]: item for item in yaml.safe_load_all(path.read_text())}


@pytest.fixture(scope="module", params=[Replicate, Fal, MiniMax], ids=lambda api: api.name)
def api(request, world):
    """The fake server of an API, and its declaration led to it."""
    with request.param() as server:
        objects = read_objects(ROOT / "examples/providers" / server.name / "provider.yaml")
        address = server.url + server.base_path
        hurried = {"minIntervalSeconds": 1, "maxIntervalSeconds": 1}
        world.apply(*lead_to(objects, address, KEY, **hurried).values())
        names = {kind: obj["metadata"]["name"] for kind, obj in objects.items()}
        for kind in ("GatewayProvider", "GatewayModel"):
            target = f"{kind.lower()}/{names[kind]}"
            world.run.kubectl("wait", "--for=condition=Ready", "--timeout=30s", target)
        yield server
        for kind in ("GatewayModel", "GatewayProvider"):
            world.run.kubectl("delete", kind.lower(), names[kind])


@pytest.fixture
async def caller(api, client):
    """A client of the API's model, which the gateway knows."""
    client.service, client.model = api.name, api.model
    api.next_job = "video"
    body = {"model": api.model}
    # an empty body is refused for its fields once the model is known
    await wait_status(client, 400, client.tasks_path, method="POST", body=body, seconds=20)
    return client


async def run(caller):
    """A task of six seconds to its end; its body."""
    answer = await caller.create(duration_seconds=6)
    assert answer.status == 202, answer.raw
    task = answer.body["id"]
    return (await caller.wait_terminal([task]))[task]


async def test_task_ends_with_the_video(api, caller):
    made = len(api.bodies)
    body = await run(caller)
    assert body["status"] == "completed", body
    (video,) = body["videos"]
    fetched = await caller.request("GET", "", base=video["url"], key=None)
    assert fetched.raw == VIDEO
    assert api.bodies[made:] == [BODIES[api.name]]
    assert body["usage"]["cost"] == COSTS[api.name] / 1_000_000


@pytest.mark.parametrize("end", ["failure", "refused"])
async def test_failed_job_and_refused_content_end_the_task_without_a_charge(api, caller, end):
    before = await read_balance(caller)
    api.next_job = end
    body = await run(caller)
    assert body["status"] == "failed"
    text = api.failure if end == "failure" else api.refusal
    assert text in body["error"]

    async def is_released() -> bool:
        # after the status, which a client sees first
        return await read_balance(caller) == before

    await wait_for(is_released, what="the balance")


async def test_rate_limit_is_waited_out_with_one_job(api, caller):
    made = len(api.bodies)
    api.next_job = "busy"
    assert (await run(caller))["status"] == "completed"
    assert len(api.bodies) == made + 1


async def test_deleted_task_is_cancelled_where_the_provider_can(api, caller, world):
    api.next_job = "running"
    task = (await caller.create(duration_seconds=6)).body["id"]
    await wait_for(lambda: read_task(world, task)["status"].get("phase") == "Running", what="a job")
    before = len(api.cancelled)
    name = read_task(world, task)["metadata"]["name"]
    # returns when the finalizer is gone: an answer about an ended job is no reason to wait
    world.run.kubectl("delete", "gatewaytask", name, "--timeout=30s")
    assert len(api.cancelled) == before + api.can_cancel


async def test_vllm_answers_a_chat(world, client):
    objects = read_objects(ROOT / "examples/providers/vllm/provider.yaml")
    with Vllm() as server:
        objects["GatewayProvider"]["spec"]["openai"]["baseUrl"] = f"{server.url}/v1"
        objects["Secret"]["stringData"] = {"api-key": KEY}
        world.apply(*objects.values())
        body = {"model": "llama-3-8b", "messages": [{"role": "user", "content": "Hello!"}]}
        answer = await wait_status(
            client, 200, "/v1/chat/completions", method="POST", body=body, seconds=30
        )
        assert answer.body["choices"][0]["message"]["content"] == "Hello!"
        assert answer.body["usage"]["prompt_tokens"] == 1000
        world.run.kubectl("delete", "gatewaymodel/llama-3-8b", "gatewayprovider/vllm")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.parent.name)
def test_file_is_accepted_as_it_stands_and_shown_in_the_guide(world, path):
    world.run.kubectl("apply", "--dry-run=server", "-f", str(path))
    guide = (ROOT / "docs/providers/public-apis.md").read_text()
    assert path.read_text() in re.findall(r"```yaml\n(.*?)```", guide, re.DOTALL)
