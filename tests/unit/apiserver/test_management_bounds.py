"""How large a key or guardrail may be (contract §9.0), and what larger ones do (I11)."""

from typing import Any

import orjson
import pytest

from gateway_core.accounts.guardrails import measure_fields
from gateway_core.accounts.records import project_key
from gateway_core.api.limits import MOST_OBJECT_BYTES
from tests.unit.apiserver.gateway import Gateway, body
from tests.unit.apiserver.management import Office

LISTS = {
    "/keys": ("allowed_models", "allowed_providers"),
    "/guardrails": ("allowed_models", "denied_models", "allowed_providers", "denied_providers"),
}


def entries(number: int, characters: int = 253) -> list[str]:
    return [f"{n:03}" + "x" * (characters - 3) for n in range(number)]


@pytest.mark.parametrize(("path", "field"), [(p, f) for p, fs in LISTS.items() for f in fs])
class TestLists:
    async def test_lists_have_at_most_64_entries_of_253_characters(
        self, path: str, field: str
    ) -> None:
        office = Office(Gateway())
        most: dict[str, Any] = {field: entries(63)}
        assert len((await office.make(path, **most))[field]) == 63
        for wrong, text in (
            (entries(65, 10), "must have at most 64 items"),
            (entries(1, 254), "[0] must have at most 253 characters"),
            (["größe"], "[0] must have printable ASCII characters only"),
            (["a\nb"], "[0] must have printable ASCII characters only"),
        ):
            answer = await office.ask("POST", path, {"name": "two", field: wrong})
            assert answer.status == 400
            assert answer.json["errors"] == {field: [text]}
        made = await office.make(path, name="three")
        answer = await office.ask("PATCH", f"{path}/{made['id']}", {field: entries(65, 10)})
        assert (answer.status, set(answer.json["errors"])) == (400, {field})


@pytest.mark.parametrize("path", [*LISTS])
async def test_fields_together_have_at_most_16_kib(path: str) -> None:
    office = Office(Gateway())
    fields = {"allowed_models": entries(64, 200), "allowed_providers": entries(64, 80)}
    answer = await office.ask("POST", path, {"name": "one", **fields})
    assert answer.status == 400
    assert set(answer.json["errors"]) == {"allowed_models"}, "the largest one"
    assert office.count("gatewaykeys" if path == "/keys" else "gatewayguardrails") <= 3


async def test_size_limit_is_exact() -> None:
    office = Office(Gateway())
    fixed = {"displayName": "one", "allowedModels": entries(64, 250)}
    left = MOST_OBJECT_BYTES - sum(measure_fields({**fixed, "metadata": {"n": ""}}).values()) - 1
    for extra, status in ((0, 201), (1, 400)):
        wanted = {
            "name": "one",
            "allowed_models": entries(64, 250),
            "metadata": {"n": "y" * (left + extra)},
        }
        answer = await office.ask("POST", "/keys", wanted)
        assert answer.status == status, answer.body
    stored = [obj["spec"] for obj in office.gateway.kube.list_objects("gatewaykeys")]
    assert max(sum(measure_fields(spec).values()) + 1 for spec in stored) == MOST_OBJECT_BYTES


async def test_size_is_that_of_the_fields_json() -> None:
    spec = {"displayName": "é", "allowedModels": ["a"], "metadata": {"k": "\x01"}, "tokens": [1]}
    counted = {name: value for name, value in spec.items() if name != "tokens"}
    assert sum(measure_fields(spec).values()) + 1 == len(orjson.dumps(counted))


@pytest.mark.parametrize(
    "spec",
    [
        {"allowedModels": entries(65, 3)},
        {"allowedModels": ["x" * 254]},
        {"allowedProviders": ["ü"]},
        {"allowedModels": ["a\tb"]},
        {"metadata": {"n": "x" * MOST_OBJECT_BYTES}},
    ],
    ids=["entries", "characters", "ascii", "printable", "bytes"],
)
class TestStoredBefore:
    """Objects that an older schema took."""

    async def test_oversized_key_is_401_and_not_kept(self, spec: dict[str, Any]) -> None:
        gateway = Gateway()
        good = gateway.put_key("demo")
        large = gateway.put_key("demo", **spec)
        assert (await gateway.create(key=large)).status == 401
        assert (await gateway.create(key=good)).status == 202
        record = gateway.keys.get("key-" + large[3:11])
        assert record is not None
        assert not record.tokens

    async def test_oversized_guardrail_refuses_all_calls(self, spec: dict[str, Any]) -> None:
        gateway = Gateway()
        gateway.put_guardrail("grd-large", gateway.key, **spec)
        answer = await gateway.create(body(), key=gateway.key)
        assert answer.status == 403
        assert (await gateway.create(key=gateway.put_key("demo"))).status == 202

    async def test_oversized_key_can_be_revoked(self, spec: dict[str, Any]) -> None:
        office = Office(Gateway())
        large = office.gateway.put_key("demo", **spec)
        answer = await office.ask("DELETE", f"/keys/key_{large[3:11]}")
        assert answer.status == 200


async def test_informer_keeps_only_state_of_revoked_key() -> None:
    office = Office(Gateway())
    made = await office.make(allowed_models=entries(60), metadata={"n": "x" * 500})
    assert (await office.ask("DELETE", f"/keys/{made['id']}")).status == 200
    record = project_key(office.read(made["id"]))
    assert (record.revoked, record.tokens, record.rules.allowed_models) == (True, (), None)
    assert (await office.gateway.create(key=made["secret"])).status == 401
    # it is shown as it was
    assert (await office.show(f"/keys/{made['id']}"))["allowed_models"] == entries(60)
