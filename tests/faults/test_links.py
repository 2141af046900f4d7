"""F11: latency, resets, a narrow line and half-open connections on each link (I1 to I7, I9).

Every process reaches what it depends on through a proxy. Clients create and poll without a fault of
their own; no request of theirs takes longer than 30 s, and all they were promised is kept.
"""

import asyncio
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.crash.conftest import FUNDS, LIMIT
from tests.crash.history import check_money, is_closed
from tests.crash.traffic import traffic
from tests.servers.control_plane import ControlPlane
from tests.servers.proxy import CLEAN, Proxy, Toxic
from tests.servers.s3 import S3Server
from tests.servers.tenants import open_tenant
from tests.servers.world import World, check_invariants, wait_for
from tests.shares import IS_WHOLE, share

pytestmark = [pytest.mark.timeout(900)]

TRIALS = 10
FAULT_SECONDS = 4.0 if IS_WHOLE else 2.0
REQUEST_SECONDS = 30.0
LINKS = (
    "API to Kubernetes",
    "operator to Kubernetes",
    "processes to Redis",
    "processes to S3",
    "operator to provider",
)
TOXICS: dict[str, Toxic | None] = {
    "200 ms late": Toxic(delay=0.2),
    "1 % resets": Toxic(reset=0.01),
    "10 kB/s": Toxic(rate=10_000),
    "half-open": None,
}
"""Half-open: the connections there are carry nothing any more, new ones work."""
COMBINATIONS = [(link, toxic) for link in LINKS for toxic in TOXICS]
NAMES = [*TOXICS]
DIAGONAL = [(link, NAMES[place % len(NAMES)]) for place, link in enumerate(LINKS)]
PLAYED = COMBINATIONS if IS_WHOLE else DIAGONAL
"""By default every link and every toxic, but not each of them with each."""


@pytest.fixture(scope="module")
def linked(control_plane: ControlPlane) -> Iterator[tuple[World, dict[str, Proxy]]]:
    """A gateway with a proxy on each link, by its name."""
    with ExitStack() as stack:
        bucket = stack.enter_context(S3Server())
        s3 = stack.enter_context(Proxy(bucket.port))
        settings = bucket.settings(endpoint=f"http://127.0.0.1:{s3.port}")
        users = dict.fromkeys(("api", "operator", "media"), settings)
        world = stack.enter_context(World(control_plane, extra_env=users, restart=True))
        ports = world.config.ports
        proxies = {
            "API to Kubernetes": Proxy(ports.kube_apiserver),
            "operator to Kubernetes": Proxy(ports.kube_apiserver),
            "processes to Redis": Proxy(ports.redis),
            "operator to provider": Proxy(ports.simulator),
        }
        for proxy in proxies.values():
            stack.enter_context(proxy)
        for process, link in (
            ("api", "API to Kubernetes"),
            ("operator", "operator to Kubernetes"),
        ):
            path = world.link_kubernetes(proxies[link].port)
            redis = f"redis://127.0.0.1:{proxies['processes to Redis'].port}/0"
            env = {"KUBECONFIG": str(path), "GATEWAY_REDIS_URL": redis}
            world.run.restart(process, {**settings, **env})
        provider = f"http://127.0.0.1:{proxies['operator to provider'].port}"
        original_base = world.read("gatewayprovider", "simulated")["spec"]["http"]["baseUrl"]
        base = original_base.replace(f"http://127.0.0.1:{ports.simulator}", provider)
        assert base != original_base
        world.patch("gatewayprovider", "simulated", {"http": {"baseUrl": base}})
        yield world, {**proxies, "processes to S3": s3}


class Timed:
    """Measures every request of a client, those without an answer too."""

    def __init__(self, request: Callable) -> None:
        self._request = request
        self.slowest = 0.0
        self.unanswered: list[str] = []

    async def __call__(self, method: str, path: str, **options):
        begun = time.monotonic()
        try:
            return await self._request(method, path, **options)
        except ConnectionError as error:
            self.unanswered.append(str(error))
            raise
        finally:
            self.slowest = max(self.slowest, time.monotonic() - begun)


@pytest.mark.parametrize(("link", "toxic"), PLAYED, ids=[f"{a}, {b}" for a, b in PLAYED])
async def test_toxic_on_a_link_loses_and_doubles_nothing(linked, tally, link, toxic):
    world, proxies = linked
    told = tally("F11", f"{toxic}, {link}")
    async with open_tenant(world, funds=FUNDS, limit=LIMIT, requestsPerMinute=1_000_000) as client:
        await client.simulate({"behaviour": "seconds", "seconds": "0.3-2"})
        client.request = timed = Timed(client.request)
        for _ in range(share(TRIALS)):
            async with told.trial(client):
                before = proxies[link].struck
                begin(proxies[link], TOXICS[toxic])
                try:
                    async with traffic(client, per_second=3):
                        await asyncio.sleep(FAULT_SECONDS)
                        # one reset in a hundred may take longer
                        await wait_for(
                            lambda before=before: proxies[link].struck > before,
                            seconds=60,
                            what="a piece that the toxic meets",
                        )
                finally:
                    proxies[link].poison(CLEAN)
                probe = await client.create_surely(secrets.token_hex(8), duration_seconds=3)
                await client.wait_terminal([probe])
                assert timed.unanswered == [], "the API gave no answer"
                assert timed.slowest <= REQUEST_SECONDS
        told.note("slowest request s", timed.slowest)
        async with told.trial(client, count=0):
            await check_invariants(client, jobs="exactly one")
            await wait_for(lambda: is_closed(world, client), what="all finalizers gone", seconds=60)
            await check_money(world, client, told)
    told.check()


def begin(proxy: Proxy, toxic: Toxic | None) -> None:
    """Lays the toxic on the link."""
    if toxic is None:
        proxy.freeze()
    else:
        proxy.poison(toxic)
