"""What a GET of a task shows, and to whom (contract §2.3, §0.5)."""

import base64
import secrets
from urllib.parse import urlsplit

from gateway_cli.local.state import ID_KEY, read_shared_secret
from gateway_core.api.ids import IdMint
from tests.servers.tenants import unique

HIDDEN = {"x-request-id", "date"}


def show_all(answer):
    """The answer but for what differs in any two."""
    headers = sorted((k.lower(), v) for k, v in answer.headers.items() if k.lower() not in HIDDEN)
    return answer.status, headers, answer.raw


async def test_completed_has_four_members_and_the_video_is_elsewhere(world, ended):
    key, account, task, body = ended
    assert set(body) == {"id", "status", "videos", "usage"}
    assert (body["id"], body["status"]) == (task, "completed")
    assert set(body["usage"]) == {"cost"}
    assert [set(video) for video in body["videos"]] == [{"url"}]
    url = body["videos"][0]["url"]
    assert urlsplit(url).netloc != urlsplit(world.env["GATEWAY_BASE_URL"]).netloc
    async with world.client(key, account) as client:
        answer = await client.poll(task)
        assert answer.headers["Cache-Control"] == "no-store"
        assert "Retry-After" not in answer.headers
        base, path = url.split(urlsplit(url).path)[0], urlsplit(url).path
        path += "?" + urlsplit(url).query if urlsplit(url).query else ""
        video = await client.request("GET", path, base=base, key=None)
        assert video.status == 200
        assert video.raw[4:8] == b"ftyp"
        part = await client.request(
            "GET", path, base=base, key=None, headers={"Range": "bytes=4-7"}
        )
        assert (part.status, part.raw) == (206, b"ftyp")


async def test_terminal_answer_never_changes(world, ended):
    async with world.client(ended[0], ended[1]) as owner:
        first = await owner.poll(ended[2])
        for _ in range(5):
            assert show_all(await owner.poll(ended[2])) == show_all(first)
        name = ended[2].replace("_", "-", 1)
        before = world.read("gatewaytask", name)["status"]
        world.patch("gatewaytask", name, {"desiredState": "Cancelled"})
        # watches are in order: what shows the end of a later task has seen the change before
        later = await owner.create_surely(unique("later"), duration_seconds=3)
        assert (await owner.wait_terminal([later]))[later]["status"] == "completed"
        assert show_all(await owner.poll(ended[2])) == show_all(first)
        assert world.read("gatewaytask", name)["status"] == before
        cancels = (await owner.read_simulator())["cancels"]
        assert before["upstream"]["jobId"] not in {cancel["job_id"] for cancel in cancels}


def list_unknown(world, own_account):
    """Ids that stand for no task of the account, by what they are."""
    key = read_shared_secret(world.config.secrets_directory, ID_KEY)
    minted = IdMint(key).mint_random("task", own_account)
    wrong = minted[:-1] + ("a" if minted[-1] != "a" else "e")
    guessed = base64.b32encode(secrets.token_bytes(17))[:26].decode().lower()
    return {
        "minted for it and never used": minted,
        "of a wrong tag": wrong,
        "guessed": f"task_{guessed}",
        "of digits that are not in base32": "task_" + "0189" * 6 + "01",
        "of a name": "task_no-such-task",
        "of another prefix": minted.replace("task_", "batch_"),
        "of the object's name": minted.replace("_", "-"),
        "in capitals": minted.upper(),
        "too short": "task_",
        "too long": "task_" + "a" * 500,
        "of other characters": "task_%00",
        "of a blank": "task_%20",
        "no id": "1",
    }


async def test_foreign_unknown_and_malformed_ids_are_answered_alike(world, client, ended):
    async with world.client(ended[0], ended[1]) as owner:
        known = await owner.poll(ended[2])
        assert known.status == 200
    unknown = list_unknown(world, client.account)
    foreign = await client.poll(ended[2])
    assert foreign.status == 404
    assert set(foreign.body) == {"error"}
    for what, task in unknown.items():
        assert show_all(await client.poll(task)) == show_all(foreign), what


async def test_running_task_is_listed_and_cancelled_for_good(client):
    await client.simulate({"behaviour": "seconds", "seconds": "600"})
    task_id = await client.create_surely(unique("cancel"), duration_seconds=3)
    path = f"{client.tasks_path}/{task_id}/cancel"
    listed = await client.request("GET", "/api/v1/tasks?status=processing")
    assert [task["id"] for task in listed.body["data"]] == [task_id]
    told = await client.request("POST", path)
    assert (told.status, told.body) == (200, {"id": task_id, "status": "processing"})
    ended = (await client.wait_terminal([task_id]))[task_id]
    await client.simulate()
    assert ended == {"id": task_id, "status": "failed", "error": "The task was cancelled."}
    assert show_all(await client.request("POST", path))[2] == (await client.poll(task_id)).raw
    (task,) = (await client.request("GET", "/api/v1/tasks?limit=1")).body["data"]
    assert (task["status"], task["error"], task["cost"]) == ("failed", ended["error"], 0)
