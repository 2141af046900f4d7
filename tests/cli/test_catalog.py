"""`gatewayctl models` and `gatewayctl providers` on a real API server, calls to a real provider."""

import secrets

import pytest
from aiohttp import web

from gateway_core.api.model import GatewayModel
from gateway_core.api.provider import GatewayProvider
from tests.servers.server import WebServer

READY = {
    "type": "Ready",
    "status": "True",
    "reason": "Available",
    "message": "",
    "lastTransitionTime": "2026-11-01T10:00:00Z",
}


class Provider(WebServer):
    """Takes one key: a list of models, and no job of any id."""

    key = secrets.token_hex(16)

    def build(self):
        """The application."""
        app = web.Application()
        app.router.add_get("/v1/models", self._answer)
        app.router.add_get("/v1/jobs/{id}", self._answer)
        return app

    async def _answer(self, request):
        given = request.headers.get("Authorization")
        if given != f"Bearer {self.key}":
            return web.Response(status=401)
        if "jobs" in request.path:
            return web.Response(status=404)
        return web.json_response({"object": "list", "data": []})


@pytest.fixture(scope="module")
def provider():
    with Provider() as server:
        yield server


@pytest.fixture
def make_provider(create, control_plane, provider):
    """A GatewayProvider with a Secret of these credentials; its name."""

    def run(kind, *credentials):
        name = f"prov-{secrets.token_hex(4)}"
        literal = "--from-literal=token=" + "\n".join(credentials)
        control_plane.kubectl("create", "secret", "generic", name, literal)
        declared = {"baseUrl": f"{provider.url}/v1"}
        if kind == "http":
            declared |= {
                "headers": [{"name": "Authorization", "value": "Bearer {credential}"}],
                "submit": {"path": "/jobs", "body": "{prompt: input.prompt}", "jobId": "id"},
                "poll": {
                    "path": "/jobs/{jobId}",
                    "state": "status",
                    "stateWords": {"succeeded": ["done"], "failed": ["error"]},
                    "outputs": "urls",
                },
            }
        spec = {
            "type": kind,
            "credentialsSecretRef": {"name": name, "key": "token"},
            kind: declared,
        }
        return create(GatewayProvider, name, spec, {"conditions": [READY]})

    return run


@pytest.mark.parametrize("kind", ["openai", "http"])
def test_test_call_tells_a_good_credential_from_a_bad_one(
    gatewayctl, make_provider, provider, kind, read
):
    good = gatewayctl("providers", "test", make_provider(kind, provider.key), "-o", "json").document
    assert [row["ok"] for row in good["items"]] == [True]
    name = make_provider(kind, "wrong")
    said = gatewayctl("providers", "test", name, code=1)
    test = read("gatewayprovider", name)["status"]["test"]
    assert (test["outcome"], test["generation"]) == ("Refused", 1)
    assert "401" in test["message"]
    assert "401" in said.out
    assert "wrong" not in said.out + said.err


def test_each_credential_is_called_with(gatewayctl, make_provider, provider):
    name = make_provider("openai", provider.key, "wrong")
    document = gatewayctl("providers", "test", name, "-o", "json", code=1).document
    assert [(row["credential"], row["ok"]) for row in document["items"]] == [(1, True), (2, False)]


def test_test_call_without_its_secret_says_so(gatewayctl, make_provider, provider, control_plane):
    name = make_provider("openai", provider.key)
    control_plane.kubectl("delete", "secret", name)
    assert name in gatewayctl("providers", "test", name, code=4).refusal


def test_code_adapter_is_not_called_from_here(gatewayctl, create):
    name = create(GatewayProvider, f"prov-{secrets.token_hex(4)}", {"type": "own-adapter"})
    assert "operator's image" in gatewayctl("providers", "test", name, code=1).refusal


def test_models_are_listed_by_provider_and_shown_with_price_and_routes(
    gatewayctl, make_provider, create
):
    provider, model = make_provider("openai", "x"), f"m-{secrets.token_hex(4)}"
    spec = {
        "modelId": model,
        "service": "acme",
        "action": "chat",
        "routes": [{"name": "main", "providerName": provider, "upstreamModel": "up-1"}],
        "prices": [{"inputPerMillionMicros": 500_000}],
    }
    create(GatewayModel, f"model-{model}", spec, {"conditions": [READY]})
    listed = gatewayctl("models", "list", "--provider", provider, "-o", "json").document["items"]
    assert [(row["model"], row["ready"], row["price"]) for row in listed] == [
        (model, "True", "0.50 a million input tokens")
    ]
    shown = gatewayctl("models", "describe", model).out
    assert f"{provider} (up-1)" in shown
    assert f"there are {model}" in gatewayctl("models", "describe", f"{model}x", code=4).refusal
    assert provider in gatewayctl("providers", "list").out
    assert "openai" in gatewayctl("providers", "describe", provider).out


def test_noun_without_a_command_lists(gatewayctl, create):
    name = f"m-{secrets.token_hex(4)}"
    routes = [{"name": "main", "providerName": "p", "upstreamModel": "up"}]
    spec = {"modelId": name, "service": "acme", "action": "chat", "routes": routes}
    create(GatewayModel, name, spec)
    assert name in gatewayctl("models").out
    rows = gatewayctl("models", "--action", "chat", "-o", "json").document["items"]
    assert name in [row["name"] for row in rows]


def test_unknown_command_of_a_noun_is_answered_with_its_commands(gatewayctl):
    said = gatewayctl("models", "show", "sim-chat", code=2).refusal
    assert "No such command 'show'" in said
    for command in ("list", "describe", "set", "delete"):
        assert command in said


@pytest.mark.usefixtures("account")
def test_kind_without_rules_of_its_own_has_all_commands(gatewayctl, control_plane, read):
    name = f"prompt-{secrets.token_hex(4)}"
    told = ("--prompt", "A lighthouse", "--service", "sim", "--action", "reference_to_video")
    gatewayctl("prompts", "create", name, "--title", "Sea", *told, "--tags", "a", "--tags", "b")
    control_plane.kubectl("label", "gatewayprompt", name, f"set={name}")
    (row,) = gatewayctl("prompts", "list", "-l", f"set={name}", "-o", "json").document["items"]
    assert (row["title"], row["tags"]) == ("Sea", ["a", "b"])
    gatewayctl("prompts", "set", name, "--featured", "--clear", "tags")
    spec = read("gatewayprompt", name)["spec"]
    assert (spec["featured"], "tags" in spec) == (True, False)
    assert "A lighthouse" in gatewayctl("prompts", "describe", name).out
    gatewayctl("prompts", "delete", name, "--yes")
    assert "no prompts" in gatewayctl("prompts", "--selector", f"set={name}").err


def test_prompt_of_a_model_that_does_not_exist_is_made_with_a_warning(gatewayctl, create):
    model, name = f"m{secrets.token_hex(4)}", f"prompt-{secrets.token_hex(4)}"
    routes = [{"name": "main", "providerName": "p", "upstreamModel": "up"}]
    spec = {"modelId": model, "service": model, "action": "chat", "routes": routes}
    create(GatewayModel, f"model-{model}", spec)
    told = ("--title", "Sea", "--prompt", "A lighthouse", "--service", model, "--action", "chat")
    warned = gatewayctl("prompts", "create", name, *told, "--model", f"{model}x").refusal
    assert f"modelId: {model}x is no model of {model}/chat; the nearest is {model}" in warned
    assert "!" not in gatewayctl("prompts", "set", name, "--model", model).err
    warned = gatewayctl("prompts", "set", name, "--service", "nosuch").refusal
    assert "service: this gateway has no model of nosuch/chat; it takes effect" in warned
    gatewayctl("prompts", "delete", name, "--yes")
