"""Real processes behind a forward proxy: only calls to declared URLs go there."""

from urllib.parse import urlsplit

from tests.servers.tenants import describe, unique
from tests.servers.world import read_task, wait_for

# names that only the proxy resolves
UPSTREAM, RECEIVER, SOURCE = "upstream.example", "receiver.example", "source.example"


async def test_only_providers_are_called_through_the_proxy(world, client, forward_proxy):
    reference = world.read("gatewayaccount", "demo")["spec"]["webhookSecretRef"]
    world.patch("gatewayaccount", client.account, {"webhookSecretRef": reference})
    job, chat = unique("proxied"), unique("proxied")
    for model, origin, field in ((job, "simulated", "http"), (chat, "simulated-openai", "openai")):
        spec = world.read("gatewayprovider", origin)["spec"]
        spec[field]["baseUrl"] = spec[field]["baseUrl"].replace("127.0.0.1", UPSTREAM)
        served = world.read("gatewaymodel", client.model if field == "http" else "sim-chat")["spec"]
        served |= {"modelId": model, "routes": [{**served["routes"][0], "providerName": model}]}
        world.apply(describe("Provider", model, spec), describe("Model", model, served))
    asked = {"model": chat, "messages": [{"role": "user", "content": "Hello"}]}

    async def is_answered():
        answer = await client.request("POST", "/v1/chat/completions", body=asked)
        return answer.status == 200

    await wait_for(is_answered, what="a language model behind the proxy")

    async def create():
        task = await client.create(model=job, callback_url=f"https://{RECEIVER}/hook")
        return task.body["id"] if task.status == 202 else None

    task_id = await wait_for(create, what="a model of the new provider")
    ended = await client.wait_terminal([task_id])
    assert ended[task_id]["status"] == "completed"
    body = {"source": {"type": "url", "url": f"http://{SOURCE}/a.png"}}
    refused = await client.request("POST", "/api/v1/files", body=body)
    assert 400 <= refused.status < 500, refused.raw

    def is_tried():
        return (read_task(world, task_id)["status"].get("callback") or {}).get("attempts")

    await wait_for(is_tried, what="an attempt of the callback")
    targets = [urlsplit(target) for target in forward_proxy.seen]
    assert {target.hostname for target in targets} == {UPSTREAM}
    assert {"/v1/jobs", "/v1/chat/completions"} <= {target.path for target in targets}
