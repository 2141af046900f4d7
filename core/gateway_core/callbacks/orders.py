"""Orders of the API process to the operator, which alone reads and writes secrets of callbacks."""

import hashlib
import hmac
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, Self

import aiohttp
import orjson

from gateway_core.api.ids import SHARDS, shard_of
from gateway_core.fair_semaphore import FairSemaphore
from gateway_core.kube.clock import CLOCK

PATH = "/orders"
SIGNATURE = "x-gateway-order"
LIFE_SECONDS = 30
ORDER_SECONDS = 25.0
"""The least for an order, to the operator's answer."""
TEST_SECONDS = 10.0
"""For a test besides its receiver's time: its turn behind the account's callbacks, and reads."""
CONNECT_SECONDS = 5.0
MOST_TESTS = 24
TESTS_PER_ACCOUNT = 2
"""Tests at a time, as receivers may hang: of this process, and of one account."""
WAIT_SECONDS = 5.0
"""How long a test waits for others to end."""
_MOST_CONNECTIONS = 32
_MOST_ANSWER = 64 * 1024
_ANSWERED = (200, 403, 409, 503, 504)
"""Statuses that the operator itself gives an order that it has read."""
_NOT_NOW = "This cannot be done now."
_UNKNOWN = "It is not known whether this was done. Send the same again."
ORDINAL = "{ordinal}"


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be done for an account: `values` are those of the action."""

    action: Literal["rotate", "test"]
    account: str
    values: Mapping[str, str]


class OrderSigner:
    """Signs orders with a key derived from the id key: any pod may reach the operator's port."""

    def __init__(self, id_key: bytes, now: Callable[[], float] = CLOCK.time) -> None:
        self._key = hmac.digest(id_key, b"orders", hashlib.sha256)
        self._now = now

    def sign(self, body: bytes) -> str:
        """Return the signature of an order's bytes at this moment."""
        time = str(int(self._now()))
        return f"{time}.{self._digest(time, body)}"

    def read(self, body: bytes, signature: str) -> Order | None:
        """Return the order, None where it is forged or old."""
        time, _, digest = signature.partition(".")
        if not hmac.compare_digest(self._digest(time, body).encode(), digest.encode()):
            return None
        return None if abs(self._now() - int(time)) > LIFE_SECONDS else Order(**orjson.loads(body))

    def _digest(self, time: str, body: bytes) -> str:
        return hmac.new(self._key, time.encode() + b"." + body, hashlib.sha256).hexdigest()


class OrderRefused(Exception):
    """The operator does not do it; the text, for the caller, says why. `status` is as in HTTP."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class OperatorPort:
    """The internal ports of the operator's replicas. An async context manager.

    `url` is the address of one, with `{ordinal}` for its number; `seconds` bounds an exchange, and
    `most` their number at a time, 0 leaving it to the caller.
    """

    def __init__(
        self, url: str, replicas: int, seconds: float, most: int = _MOST_CONNECTIONS
    ) -> None:
        self._url = url.rstrip("/")
        self._replicas = replicas
        self.seconds = seconds
        self._most = most

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=self._most),
            timeout=aiohttp.ClientTimeout(total=self.seconds, connect=CONNECT_SECONDS),
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    def find_owner(self, name: str) -> str:
        """Return the address of the replica that owns the shard of the object `name`."""
        ordinal = shard_of(name) % min(self._replicas, SHARDS)
        return self._url.replace(ORDINAL, str(ordinal))


class OrderLink(OperatorPort):
    """Gives orders to the replica that owns the account.

    Tests are bounded, and no other order waits for them. `callback_seconds` is the operator's limit
    for a receiver's answer.
    """

    def __init__(
        self, url: str, replicas: int, signer: OrderSigner, callback_seconds: float
    ) -> None:
        seconds = max(ORDER_SECONDS, callback_seconds + TEST_SECONDS)
        super().__init__(url, replicas, seconds, most=0)
        self._signer = signer
        self._tests = FairSemaphore(
            MOST_TESTS,
            alone=MOST_TESTS,
            per_holder=TESTS_PER_ACCOUNT,
            seconds=WAIT_SECONDS,
            error=lambda: OrderRefused(503, "Other tests are under way. Try again in a moment."),
        )

    async def give(self, order: Order) -> Mapping[str, Any]:
        """Return what the operator answers.

        Raises OrderRefused, of status 504 where the outcome is unknown.
        """
        if order.action != "test":
            return await self._give(order)
        async with self._tests.take(order.account):
            return await self._give(order)

    async def _give(self, order: Order) -> Mapping[str, Any]:
        body = orjson.dumps(asdict(order))
        url = self.find_owner(order.account) + PATH
        headers = {SIGNATURE: self._signer.sign(body)}
        try:
            async with self._session.post(
                url, data=body, headers=headers, allow_redirects=False
            ) as answer:
                text = await answer.content.read(_MOST_ANSWER)
                found = orjson.loads(text) if answer.status in _ANSWERED else None
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError):
            raise OrderRefused(503, _NOT_NOW) from None
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
            raise OrderRefused(504, _UNKNOWN) from None
        if answer.status == 404:
            # forged, by clocks too far apart, or unknown to an older operator: not carried out
            raise OrderRefused(503, _NOT_NOW)
        if found is None:
            raise OrderRefused(504, _UNKNOWN)
        if answer.status != 200:
            raise OrderRefused(answer.status, found["problem"])
        result: Mapping[str, Any] = found
        return result
