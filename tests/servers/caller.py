"""A process whose calls leave no objects: the real journal, counters and store, and made-up prices.

`python -m tests.servers.caller ACCOUNT KEY` makes calls until SIGTERM, then ends as a server does;
at SIGUSR1 it rests. On its output it says each end of a call before and after it, each put of the
journal likewise, and that it rests: a line of JSON each.
"""

import asyncio
import itertools
import json
import os
import random
import signal
import socket
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import structlog

from gateway_core.api.ids import CALL_PREFIX
from gateway_core.api.limits import subject_of_key
from gateway_core.billing.counters import AdmissionCall, Budget, Hold
from gateway_core.billing.journal import CallRecord, name_process
from gateway_core.billing.journal_store import JournalStore
from gateway_core.billing.ledger import Rebuilder
from gateway_core.billing.redis_counters import Counters
from gateway_core.billing.reservations import CallReservations, Rebuild
from gateway_core.kube.client import KubernetesClient
from gateway_core.kube.errors import KubernetesError
from gateway_core.kube.kubeconfig import find_connection
from gateway_core.redis.link import CountersUnavailable
from gateway_core.storage.directory import DirectoryStore
from gateway_core.storage.objects import StoredObject

HELD = 1000
PAUSE = 0.01


def say(**what: object) -> None:
    """Tells the test; what is written here outlives the process."""
    os.write(1, json.dumps({**what, "at": time.time()}).encode() + b"\n")


class TellingStore(DirectoryStore):
    """Tells of each put, so that a slow one is seen."""

    async def put(self, key: str, data: bytes) -> StoredObject:
        say(key=key, what="put")
        stored = await super().put(key, data)
        say(key=key, what="stored")
        return stored


@dataclass(frozen=True)
class Payer:
    """An account without limits, and its key."""

    name: str
    key_name: str
    requests_per_minute: int = 1_000_000
    unlimited: bool = True
    funds: int = 0
    budgets: tuple[Budget, ...] = ()

    @property
    def subjects(self) -> tuple[str, ...]:
        """What its money counts under."""
        return (subject_of_key(self.key_name),)


async def admit(
    counters: Counters, live: CallReservations, rebuild: Rebuild, payer: Payer, hold: Hold
) -> bool:
    """Lets a call in as a surface does; False while money cannot be told."""
    account = payer.name
    if live.leases.take(payer, payer, hold) is not None:
        return True
    try:
        answer = await counters.admit(AdmissionCall(account, 1_000_000, hold, None))
        if answer.stale and await rebuild(account):
            await live.retake(account)
    except (CountersUnavailable, KubernetesError):
        await asyncio.sleep(0.1)
        return False
    if answer.held:
        live.begin(account, hold)
    return answer.held


async def call_always(
    account: str,
    key: str,
    counters: Counters,
    live: CallReservations,
    rebuild: Rebuild,
    resting: asyncio.Event,
    ended: asyncio.Event,
) -> None:
    """Call after call, each ended before the next, so that the journal has them in this order."""
    prices, payer = random.Random(os.getpid()), Payer(account, key)
    for number in itertools.count():
        if ended.is_set():
            return
        if resting.is_set():
            # no call is under way any more
            say(what="resting")
            await ended.wait()
            return
        name = f"{CALL_PREFIX}{live.journal.process}-{number}"
        if not await admit(counters, live, rebuild, payer, Hold(name, HELD, payer.subjects)):
            continue
        await asyncio.sleep(PAUSE)
        micros = prices.randrange(HELD)
        say(call=name, micros=micros, leased=len(live.leases) > 0, what="ending")
        record = CallRecord(
            call=name,
            account=account,
            time=datetime.now(UTC),
            model_id="m",
            operation="llm/chat",
            micros=micros,
            key_name=key,
            input_tokens=7,
        )
        if not live.end_leased(record):
            await live.end(record)
        say(call=name, micros=micros, what="ended")


async def main(account: str, key: str) -> None:
    """Runs until SIGTERM."""
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    loop, resting, ended = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, ended.set)
    loop.add_signal_handler(signal.SIGUSR1, resting.set)
    store = TellingStore(Path(os.environ["GATEWAY_STORE_DIR"]))
    counters = Counters(os.environ["GATEWAY_REDIS_URL"], namespace=os.environ["GATEWAY_NAMESPACE"])
    connection = await asyncio.to_thread(find_connection)
    async with KubernetesClient(connection, os.environ["GATEWAY_NAMESPACE"]) as kube:
        rebuild = Rebuilder(kube, JournalStore(store), counters).rebuild
        live = CallReservations(
            counters, rebuild, store, name_process("caller", socket.gethostname())
        )
        running = asyncio.create_task(live.run())
        say(process=live.journal.process, what="ready")
        await call_always(account, key, counters, live, rebuild, resting, ended)
        await live.close()
        say(what="closed")
        running.cancel()
        await counters.close()
    store.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
