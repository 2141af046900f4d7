"""F8, callbacks: of 120 hostile URLs none is connected to, by whichever way it is written."""

import json
from ipaddress import ip_network
from types import SimpleNamespace

import pytest
from aiohttp.abc import AbstractResolver, ResolveResult

from gateway_core.api.errors import InvalidRequest
from gateway_core.callbacks.client import CallbackSender
from gateway_core.egress.addresses import AddressPolicy
from gateway_core.tasks.drafts import draft_task
from gateway_core.tasks.operations import OPERATIONS
from tests.servers.hostile_urls import CORPUS, LyingResolver, catch_connections
from tests.servers.namespaces import run_alone
from tests.servers.receivers import Receiver, answer
from tests.shares import share

REFUSED = {"the address is not allowed", "the URL cannot be called", "the host name was not found"}


async def test_no_socket_is_connected(tally):
    told = tally("F8", "callback")
    for hostile in CORPUS:
        sender = CallbackSender(AddressPolicy(), timeout=5, resolver=LyingResolver())
        async with told.trial():
            with catch_connections() as tried:
                for _ in range(2):
                    answered = await sender.send(hostile.url, {}, b"{}")
                    assert answered.status is None
                    assert answered.text in REFUSED, f"{hostile.url}: {answered.text}"
            assert tried == [], f"{hostile.url} led to {tried}"
        await sender.close()
    told.check()
    assert told.trials == 120


def test_hostile_urls_reach_no_address_where_each_is_heard():
    """The same where the kernel hears of each: a network in which all addresses are local."""
    found = run_alone("tests.callbacks.sink", "--net")
    assert found["control"] == ["93.184.216.34", "2606:4700::1111"]
    assert found["reached"] == []
    assert found["metadata"] == ["the address is not allowed"] * 3
    assert len(found["told"]) == 120
    assert set(found["told"].values()) <= REFUSED


@pytest.mark.parametrize(
    "hostile", [hostile for hostile in CORPUS if hostile.is_literal], ids=lambda url: url.url
)
def test_hostile_literal_address_is_refused_at_create(hostile):
    operation = OPERATIONS["reference_to_video"]
    body = {
        "model": "m",
        "prompt": "p",
        "reference_image_urls": ["https://example.com/a.png"],
        "callback_url": hostile.url,
    }
    catalog = SimpleNamespace(find_model=lambda *_: None)
    with pytest.raises(InvalidRequest) as refused:
        draft_task(catalog, operation, "sim", json.dumps(body).encode(), AddressPolicy())
    assert list(refused.value.errors) == ["callback_url"]


class Turncoat(AbstractResolver):
    """Says the first address once, and then the second."""

    def __init__(self, *addresses):
        self.addresses = list(addresses)

    async def resolve(self, host, port=0, family=0):
        address = self.addresses.pop(0) if len(self.addresses) > 1 else self.addresses[0]
        return [ResolveResult(hostname=host, host=address, port=port, family=2, proto=0, flags=4)]

    async def close(self):
        pass


async def test_name_that_is_bound_anew_reaches_no_denied_address(tally):
    """F7: the first attempt reaches the receiver, the next one would reach the inside."""
    told = tally("F7", "DNS rebinding")
    policy = AddressPolicy(allowed=(ip_network("127.0.0.1/32"),))
    async with Receiver() as receiver, Receiver(host="127.0.0.2", port=receiver.port) as inside:
        receiver.always("x", answer(500))
        for number in range(share(200)):
            resolver = Turncoat("127.0.0.1", "127.0.0.2")
            url = f"http://name-{number}.example:{receiver.port}/x"
            async with told.trial():
                answers = []
                for _ in range(2):
                    # a process has one sender, whose look-ups are kept for seconds
                    sender = CallbackSender(policy, timeout=5, resolver=resolver)
                    answers.append((await sender.send(url, {}, b"{}")).text)
                    await sender.close()
                assert answers == ["answered 500", "the address is not allowed"]
                assert not inside.connections, "bytes to a denied address"
    told.check()
