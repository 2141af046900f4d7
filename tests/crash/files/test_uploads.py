"""kill -9 of the API at steps of an Upload: the client repeats, has one File (I5, I6, I9)."""

import asyncio

import pytest

from tests.crash.steps import UPLOADS, choose
from tests.crash.storage import PIECES, Uploading, list_files
from tests.servers.world import wait_for
from tests.shares import share

KILLS_A_STEP = 25


@pytest.mark.timeout(180)
@pytest.mark.parametrize("kill", range(share(KILLS_A_STEP)))
@pytest.mark.parametrize("step", choose("api", UPLOADS))
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
        assert world.read("gatewayupload", name)["spec"]["outcome"] == "Completed"
    told.check()
