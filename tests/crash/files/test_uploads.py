"""kill -9 of the API at each step of an Upload: the client repeats, has one File (I5, I6, I9)."""

import asyncio
import json
import secrets

import pytest

from tests.servers.world import wait_for
from tests.shares import share

STEPS = (
    "before-part-put",
    "after-part-put",
    "before-upload-outcome",
    "after-upload-outcome",
    "before-upload-file",
    "after-upload-file",
)
KILLS_A_STEP = 25
PIECES = (b"first" * 1000, b"second" * 2000, b"third")


class Uploading:
    """A client that repeats what it got no answer to, as an SDK does."""

    def __init__(self, client):
        self._client = client

    async def post(self, path, **options):
        """The first answer that is not a failure of the server."""

        async def attempt():
            try:
                answer = await self._client.request("POST", f"/v1/uploads{path}", **options)
            except ConnectionError:
                return None
            return answer if answer.status < 500 else None

        return await wait_for(attempt, what=f"an answer to {path}", seconds=60)

    async def add(self, upload, piece):
        """A part's id."""
        boundary = secrets.token_hex(8)
        head = f'--{boundary}\r\nContent-Disposition: form-data; name="data"\r\n\r\n'
        body = head.encode() + piece + f"\r\n--{boundary}--\r\n".encode()
        kind = {"Content-Type": f"multipart/form-data; boundary={boundary}"}
        answer = await self.post(f"/{upload}/parts", headers=kind, data=body)
        assert answer.status == 200, answer.raw
        return answer.body["id"]

    async def upload(self, pieces=PIECES):
        """The completed Upload; twice told, it is the same."""
        size = sum(map(len, pieces))
        body = {"bytes": size, "filename": "a", "mime_type": "x", "purpose": "user_data"}
        key = {"Idempotency-Key": secrets.token_hex(8)}
        created = await self.post("", headers=key, body=body)
        assert created.status == 200, created.raw
        upload = created.body["id"]
        ids = [await self.add(upload, piece) for piece in pieces]
        done = await self.post(f"/{upload}/complete", body={"part_ids": ids})
        again = await self.post(f"/{upload}/complete", body={"part_ids": ids})
        assert done.status == again.status == 200, (done.raw, again.raw)
        assert done.body == again.body
        return done.body


@pytest.mark.timeout(180)
@pytest.mark.parametrize("kill", range(share(KILLS_A_STEP)))
@pytest.mark.parametrize("step", STEPS)
async def test_api_killed_at_a_step_of_an_upload_loses_and_doubles_nothing(
    world, payer, tally, step, kill
):
    told = tally("F1", f"api killed {step}, in an upload")
    world.restart_doomed("api", {"GATEWAY_FAILPOINTS": f"{step}:1"})
    uploading = asyncio.create_task(Uploading(payer).upload())
    await wait_for(lambda: not world.is_alive("api"), what=f"death at {step}", seconds=40)
    world.run.restart("api", {})
    async with told.trial(payer):
        upload = await uploading
        name = upload["id"].replace("_", "-")
        files = [file for file in list_files(world) if file["upload"] == name]
        assert [file["name"] for file in files] == [upload["file"]["id"]], "I5"
        (file,) = files
        store = world.config.store_directory
        stored = b"".join((store / key).read_bytes() for key in file["keys"])
        assert stored == b"".join(PIECES), "I9: other bytes than were sent"
        object_ = world.read("gatewayupload", name)
        assert object_["spec"]["outcome"] == "Completed"
    told.check()


def list_files(world):
    """What is told here of all GatewayFiles."""
    items = json.loads(world.run.kubectl("get", "gatewayfiles", "-o", "json"))["items"]
    return [
        {
            "name": item["metadata"]["name"],
            "upload": item["spec"]["request"].get("uploadName"),
            "keys": [segment["key"] for segment in item["spec"]["request"]["segments"]],
        }
        for item in items
    ]
