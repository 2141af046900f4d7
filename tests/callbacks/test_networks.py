"""Networks of receivers open nothing to files, and denied ones stay closed (contract §11.6)."""

import pytest

from tests.callbacks.tasks import run_task, wait_state
from tests.servers.receivers import answer

pytestmark = pytest.mark.full


async def test_private_receiver_gets_its_callback_and_is_not_fetched_as_a_file(
    world, client, receiver
):
    url = receiver.plan("inside", answer(204))
    task, _ = await run_task(client, url)
    await wait_state(world, task, "Delivered")
    [delivered] = receiver.arrivals
    refused = await client.request(
        "POST", "/api/v1/files", body={"source": {"type": "url", "url": url}}
    )
    assert refused.status == 400
    assert refused.body["errors"] == {"source": ["leads to an address that is not allowed"]}
    assert receiver.arrivals == [delivered]


async def test_denied_network_inside_an_allowed_one_is_refused(client, receiver):
    url = receiver.plan("denied", answer(204)).replace("127.0.0.1", "127.0.0.3")
    refused = await client.create(callback_url=url)
    assert refused.status == 400
    assert refused.body["errors"] == {"callback_url": ["must not name an address of the cluster"]}
