"""Who may govern, in which order calls are checked, and that accounts see nothing of each other."""

from typing import Any

import pytest

from tests.unit.apiserver.gateway import Gateway, call
from tests.unit.apiserver.management import ROOT, Office


@pytest.fixture
async def office(gateway: Gateway) -> Office:
    return Office(gateway)


async def test_members_can_be_read_but_not_changed(office: Office) -> None:
    gateway = office.gateway
    gateway.put_user("olga", {"demo": "owner", "guest": "viewer"}, displayName="Olga")
    gateway.put_user("max", {"demo": "member"}, suspended=True)
    gateway.put_user("nina", {"guest": "admin"})
    page = await office.show("/members", "order=asc")
    members = {member["name"]: member for member in page["data"]}
    assert set(members) == {"Olga", "Max"}
    assert set(members["Olga"]) == {
        *("id", "object", "name", "email", "role", "suspended", "created_at")
    }
    assert (members["Olga"]["role"], members["Max"]["role"]) == ("owner", "member")
    assert (members["Olga"]["suspended"], members["Max"]["suspended"]) == (False, True)
    assert all(type(member["id"]) is int for member in page["data"])
    assert page["first_id"] == page["data"][0]["id"]
    rest = await office.show("/members", f"order=asc&after={page['first_id']}")
    assert rest["data"] == page["data"][1:]
    nina = next(user.id for _, user in gateway.users.items() if user.name == "nina")
    for cursor in (nina, 5, "x"):
        assert (await office.ask("GET", "/members", query=f"after={cursor}")).status == 404
    answer = await office.ask("PATCH", f"/members/{page['first_id']}", {"role": "admin"})
    assert answer.status == 403
    assert "role" in answer.json["error"]


@pytest.mark.parametrize("path", ["", "/", "/nothing", "/keys/", "/keys//rotate", "/keys/a/b"])
async def test_unknown_paths_are_404(office: Office, path: str) -> None:
    answer = await office.ask("GET", path)
    assert answer.status == 404
    # an address that is nearly right is told the right one
    assert answer.json["error"].startswith("Not found")
    assert (await office.gateway.get(ROOT + "x")).status == 404


@pytest.mark.parametrize(
    ("path", "allow"),
    [
        ("/keys", "GET, HEAD, POST"),
        ("/keys/x", "DELETE, GET, HEAD, PATCH"),
        ("/keys/x/rotate", "POST"),
        ("/guardrails/x/assignments", "GET, HEAD, POST"),
        ("/members/1", "PATCH"),
        ("/usage", "GET, HEAD"),
    ],
)
async def test_unserved_method_is_405_before_authentication(
    office: Office, path: str, allow: str
) -> None:
    answer = await call(office.gateway.app, "PUT", ROOT + path)
    assert answer.status == 405
    assert answer.headers["allow"] == allow


async def test_bodies_are_json_of_a_bounded_size(office: Office) -> None:
    headers = {"Content-Type": "text/plain"}
    wrong = await office.ask("POST", "/keys", content=b"{}", headers=headers)
    assert (wrong.status, wrong.headers["accept"]) == (415, "application/json")
    assert (await office.ask("POST", "/keys")).status == 415
    headers = {"Content-Type": "application/json"}
    big = await office.ask("POST", "/keys", content=b" " * (2**20 + 1), headers=headers)
    assert big.status == 413
    for content in (b"", b"{", b"[]", b"null", b'"x"'):
        answer = await office.ask("POST", "/keys", content=content, headers=headers)
        assert (answer.status, set(answer.json)) == (400, {"error"})
    made = await office.make()
    rotate = f"/keys/{made['id']}/rotate"
    assert (await office.ask("POST", rotate, content=b"x")).status == 415
    assert (await office.ask("POST", rotate)).status == 200
    assert (await office.ask("POST", rotate, {})).status == 200


async def test_bad_body_is_400_before_unknown_key_is_404(office: Office) -> None:
    answer = await office.ask("PATCH", "/keys/key_nobody", {"nonsense": 1})
    assert answer.status == 400
    assert (await office.ask("PATCH", "/keys/key_nobody", {"name": "x"})).status == 404


async def test_calls_do_not_count_in_rate_of_paid_calls(office: Office) -> None:
    office.gateway.put_account("demo", requestsPerMinute=1)
    for _ in range(3):
        answer = await office.ask("GET", "/keys")
        assert answer.status == 200
        assert not any(name.startswith("x-ratelimit") for name in answer.headers)


async def test_foreign_ids_are_answered_as_unknown_ids(office: Office) -> None:
    """I8: the same status, body and headers for foreign and unknown ids."""
    key = await office.make()
    guardrail = await office.make("/guardrails")
    body = {"key_ids": [key["id"]]}
    calls: list[tuple[str, str, str, Any]] = [
        ("GET", "/keys/{}", key["id"], None),
        ("PATCH", "/keys/{}", key["id"], {"name": "x"}),
        ("DELETE", "/keys/{}", key["id"], None),
        ("POST", "/keys/{}/rotate", key["id"], {}),
        ("GET", "/guardrails/{}", guardrail["id"], None),
        ("PATCH", "/guardrails/{}", guardrail["id"], {"name": "x"}),
        ("DELETE", "/guardrails/{}", guardrail["id"], None),
        ("GET", "/guardrails/{}/assignments", guardrail["id"], None),
        ("POST", "/guardrails/{}/assignments", guardrail["id"], body),
        ("POST", "/guardrails/{}/assignments/remove", guardrail["id"], body),
    ]
    spec = {"accountName": "demo", "class": "Standard", "displayName": "d", "secretName": "s"}
    office.gateway.kube.put("gatewaykeys", {"metadata": {"name": "key-named"}, "spec": spec})
    calls.append(("GET", "/keys/{}", "key_named", None))
    for method, template, foreign, sent in calls:
        prefix = foreign[:4]
        ids = (foreign, prefix + "a" * 26, prefix + "nobody", "x", prefix.upper() + "a")
        answers = [
            await office.ask(method, template.format(wire_id), sent, key=office.other_key)
            for wire_id in ids
        ]
        assert {answer.status for answer in answers} == {404}, (method, template)
        assert len({answer.body for answer in answers}) == 1
        assert len({tuple(sorted(set(answer.headers))) for answer in answers}) == 1
    listed = await office.ask("GET", "/keys", key=office.other_key)
    assert key["id"] not in {item["id"] for item in listed.json["data"]}
    cursor = await office.ask("GET", "/keys", query=f"after={key['id']}", key=office.other_key)
    assert cursor.status == 404
    assert office.read(key["id"])["spec"].get("revoked") is None


async def test_queries_have_at_most_100_parameters(office: Office) -> None:
    """Each unknown one is a problem to make; the list of prices needs no key."""
    query = "&".join(f"p{number}=1" for number in range(101))
    app = office.gateway.app
    for answer in (
        await office.ask("GET", "/keys", query=query),
        await call(app, "GET", "/api/v1/price_schedules", query=query),
    ):
        assert answer.status == 400
        assert answer.json == {"error": "The query has too many parameters."}
