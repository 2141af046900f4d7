"""F3: etcd or the API server is away for a while, and comes back (I1, I2, I7, I9).

What cannot be recorded is refused with 503 within two seconds; what was on its way when they went
may be told to be unknown (504, contract §2.1). Nobody has to do anything afterwards.
"""

import asyncio
import time

import pytest

from gateway_core.api.crd import KINDS
from gateway_core.kube.client import KubernetesClient
from gateway_core.kube.errors import KubernetesError
from gateway_core.kube.kubeconfig import find_connection
from tests.crash.history import check_money
from tests.faults.machine import Stopwatch
from tests.servers.world import check_invariants, wait_for
from tests.shares import IS_WHOLE, share

OUTAGES = {5: 17, 60: 10, 300: 3}
"""How many, by their seconds."""
REFUSAL_SECONDS = 2.0
HEAL_SECONDS = 25.0
RETURN_SECONDS = 150.0
"""kube-apiserver connects to etcd again with a back-off of up to 120 s, for each kind by itself."""
NOTICE_SECONDS = 3.0
"""A create sent later than that into an outage is refused, since it is known by then."""

CASES = [
    (process, seconds)
    for process in ("etcd", "kube-apiserver")
    for seconds in (OUTAGES if IS_WHOLE else (5,))
]


@pytest.mark.parametrize(("process", "seconds"), CASES)
@pytest.mark.timeout(3600)
async def test_outage_is_reported_at_once_and_ends_without_a_restart(
    world, payer, tally, process, seconds
):
    told = tally("F3", f"{process} away for {seconds} s")
    for _ in range(share(OUTAGES[seconds])):
        await payer.simulate({"behaviour": "seconds", "seconds": f"1-{seconds + 3}"})
        running = [
            await payer.create_surely(f"before-{time.time()}-{n}", duration_seconds=3)
            for n in range(6)
        ]
        async with told.trial(payer):
            await asyncio.to_thread(world.run.kill, process)
            again = await call_during(payer, told, seconds)
            await asyncio.to_thread(world.run.restart, process)
            with Stopwatch() as returning:
                await wait_served(world)
            told.note("kube-apiserver back within s", returning.seconds)
            with Stopwatch() as healing:
                await payer.simulate({"behaviour": "seconds", "seconds": "0.1"})
                fresh = await payer.create_surely(f"after-{time.time()}", duration_seconds=3)
                asked = [await payer.create_surely(key, duration_seconds=3) for key in again]
                await payer.wait_terminal([fresh, *asked, *running])
            told.judge("healed within s", healing, at_most=HEAL_SECONDS)
            await check_invariants(payer, jobs="exactly one")
            await check_money(world, payer, told, killed=True)
    told.check()


async def wait_served(world):
    """Waits until kube-apiserver serves every kind from etcd again."""
    connection = find_connection(world.config.cluster_kubeconfig)
    async with KubernetesClient(connection, world.config.namespace, call_seconds=3) as kube:

        async def is_served():
            try:
                await kube.call_core("GET", "secrets")
                for kind in KINDS:
                    await kube.list_page(kind.plural, limit=1)
            except KubernetesError:
                return False
            return True

        await wait_for(is_served, what="kube-apiserver", seconds=RETURN_SECONDS)


async def call_during(client, told, seconds):
    """Creates twice a second, each answer as it must be; the keys that are to be sent again.

    By turns with a key and without, without one only once the outage is known: a hold that was left
    for a repeat stays for minutes where nobody repeats.
    """
    begin, calls, again = time.monotonic(), [], []

    async def call(number):
        sent = time.monotonic()
        is_known = sent - begin > NOTICE_SECONDS
        key = None if is_known and number % 2 else f"during-{begin}-{number}"
        with Stopwatch() as timed:
            answer = await client.create(idempotency_key=key, duration_seconds=3)
        if answer.status == 504:
            told.note("unknown (504) within s", timed.seconds)
            since = sent - begin
            told.judge(
                "creates sent before s are 504", timed, at_most=NOTICE_SECONDS, seconds=since
            )
            if key is not None:
                again.append(key)
            return
        assert answer.status == 503, (answer.status, answer.raw)
        assert int(answer.headers["Retry-After"]) >= 1
        if not is_known:
            again.append(key)
        told.judge("refused (503) within s", timed, at_most=REFUSAL_SECONDS)

    while time.monotonic() - begin < seconds:
        calls.append(asyncio.create_task(call(len(calls))))
        await asyncio.sleep(0.5)
    await asyncio.gather(*calls)
    return again
