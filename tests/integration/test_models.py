"""Models and providers come and go with kubectl, and narrow what is taken (contract §2.1)."""

import pytest

from gateway_cli.cluster.errors import ClusterError
from tests.servers.tenants import describe, describe_model, read_balance, unique, wait_status
from tests.servers.world import wait_for

RULES = [
    {"name": "reference_audio_urls", "supported": False},
    {"name": "output_resolution", "allowed": ["540p", "1080p"], "default": '"1080p"'},
    {"name": "duration_seconds", "minimum": 4, "maximum": 10},
    {"name": "reference_image_urls", "maxItems": 2},
    {"name": "prompt", "maxLength": 100},
]


@pytest.fixture(scope="module")
def narrow(world):
    """A model with rules of its own beside the first one."""
    name = unique("narrow")
    world.apply(describe_model(world, name, fields=RULES, service=world.env["GATEWAY_SERVICE"]))
    yield name
    world.run.kubectl("delete", "gatewaymodel", name)


@pytest.fixture
async def known(shared, narrow):
    """Waits until the API has the model."""
    long = shared.body(model=narrow, prompt="a" * 101)
    await wait_status(shared, 409, shared.tasks_path, method="POST", body=long)


URL = "https://example.com/a"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("reference_audio_urls", [URL]), ("reference_audio_urls", [])),
        *(("output_resolution", "720p"), ("duration_seconds", 3), ("duration_seconds", 11)),
        *(("reference_image_urls", [URL] * 3), ("prompt", "a" * 101)),
    ],
)
@pytest.mark.usefixtures("known")
async def test_what_the_model_does_not_support_is_409_in_the_simple_form(
    shared, narrow, name, value
):
    answer = await shared.create(model=narrow, **{name: value})
    assert answer.status == 409
    assert set(answer.body) == {"error"}
    assert name in answer.body["error"]
    assert narrow in answer.body["error"]
    assert answer.headers["x-should-retry"] == "false"
    # another model takes it
    assert (await shared.create(**{name: value})).status == 202


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("output_resolution", "8k"), ("duration_seconds", 17), ("duration_seconds", 2)),
        *(("reference_image_urls", [URL] * 16), ("prompt", "a" * 20_001)),
    ],
)
@pytest.mark.usefixtures("known")
async def test_what_the_operation_does_not_have_is_400_whatever_the_model(
    shared, narrow, name, value
):
    answer = await shared.create(model=narrow, **{name: value})
    assert answer.status == 400
    assert set(answer.body["errors"]) == {name}


@pytest.mark.parametrize(
    "changes",
    [
        *({"output_resolution": "540p"}, {"duration_seconds": 4}, {"duration_seconds": 10}),
        *({"reference_image_urls": [URL] * 2}, {"prompt": "a" * 100}, {}),
        {"reference_audio_urls": None},
    ],
)
@pytest.mark.usefixtures("known")
async def test_what_the_model_supports_is_taken(shared, narrow, changes):
    body = {**shared.body(model=narrow), **changes}
    answer = await shared.request("POST", shared.tasks_path, body=body)
    assert answer.status == 202, answer.raw


async def test_default_is_the_models_own(client, shared, narrow, known):
    answer = await client.create(model=narrow)
    assert answer.status == 202
    # 5 seconds of 1080p at 0.10
    assert (await read_balance(client))["balance_cents"] == 10_000 - 50
    explicit = {"idempotency_key": "k", "model": narrow}
    first = await client.create(output_resolution="1080p", **explicit)
    assert (await client.create(**explicit)).body["id"] == first.body["id"]


async def test_default_that_the_model_does_not_take_is_409_where_it_has_no_own(world, client):
    """The operation's default is what is asked for; the model says no, and how it must be told."""
    name = unique("defaultless")
    rule = {"name": "aspect_ratio", "allowed": ["1:1"]}
    world.apply(describe_model(world, name, fields=[rule]))

    def is_judged():
        conditions = world.read("gatewaymodel", name).get("status", {}).get("conditions", [])
        return conditions and conditions[0]

    ready = await wait_for(is_judged, what="a condition")
    # a model whose own defaults it refuses is no model: an admin is told, no client is
    assert (ready["status"], ready["reason"]) == ("False", "InvalidField")
    assert "aspect_ratio" in ready["message"]
    path = f"/api/v1/{name}/reference_to_video"
    assert (await client.request("POST", path, body=client.body(model=name))).status == 404
    world.run.kubectl("delete", "gatewaymodel", name)


async def test_provider_and_model_of_kubectl_serve_within_seconds_and_leave_again(world, client):
    name = unique("second")
    provider = world.read("gatewayprovider", "simulated")["spec"]
    route = {"name": "main", "providerName": name, "upstreamModel": "q9"}
    path = f"/api/v1/{name}/reference_to_video"
    assert (await client.request("POST", path, body=client.body(model=name))).status == 404
    world.apply(describe("Provider", name, provider), describe_model(world, name, routes=[route]))
    body = client.body(model=name, duration_seconds=3)
    answer = await wait_status(client, 202, path, method="POST", body=body)
    task = f"{path}/{answer.body['id']}"
    assert answer.headers["Location"] == task
    document = (await client.request("GET", "/openapi.json")).body
    assert {path, path + "/{task_id}"} <= set(document["paths"])

    async def is_completed():
        return (await client.request("GET", task)).body["status"] == "completed"

    await wait_for(is_completed, what="the end")
    obj = world.read("gatewaytask", answer.body["id"].replace("_", "-", 1))
    assert obj["status"]["upstream"]["providerName"] == name

    world.run.kubectl("delete", f"gatewaymodel/{name}", f"gatewayprovider/{name}")
    await wait_status(client, 404, path, method="POST", body=body)
    assert path not in (await client.request("GET", "/openapi.json")).body["paths"]
    # what it made can still be read, by its owner alone
    assert (await client.request("GET", task)).body["status"] == "completed"
    assert (await client.request("GET", task, key=None)).status == 404


async def test_disabled_model_is_as_one_that_is_not_there(world, client):
    name = unique("disabled")
    world.apply(describe_model(world, name))
    path = f"/api/v1/{name}/reference_to_video"
    await wait_status(client, 202, path, method="POST", body=client.body(model=name))
    world.patch("gatewaymodel", name, {"disabled": True})
    await wait_status(client, 404, path, method="POST", body=client.body(model=name))
    world.patch("gatewaymodel", name, {"disabled": False})
    await wait_status(client, 202, path, method="POST", body=client.body(model=name))
    world.run.kubectl("delete", "gatewaymodel", name)


async def test_model_of_one_path_is_unknown_at_another(world, client):
    name = unique("elsewhere")
    world.apply(describe_model(world, name))
    path = f"/api/v1/{name}/reference_to_video"
    await wait_status(client, 202, path, method="POST", body=client.body(model=name))
    answer = await client.request("POST", path, body=client.body())
    assert answer.status == 400
    assert set(answer.body["errors"]) == {"model"}
    assert (await client.create(model=name)).status == 400
    world.run.kubectl("delete", "gatewaymodel", name)


@pytest.mark.parametrize("segment", ["me", "files", "management", "price_schedules"])
async def test_reserved_segment_is_refused_to_the_admin(world, segment):
    model = describe_model(world, unique("reserved"), service=segment)
    with pytest.raises(ClusterError) as refusal:
        world.apply(model)
    assert "service" in str(refusal.value)


async def test_reserved_segments_are_no_operations(shared):
    for segment in ("me", "files", "management", "price_schedules", "price_quotes"):
        path = f"/api/v1/{segment}/reference_to_video"
        assert (await shared.request("POST", path, body=shared.body())).status == 404
