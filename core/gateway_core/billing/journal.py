"""Usage journal: charges of calls without an object, appended as immutable store objects."""

import asyncio
import re
import secrets
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from itertools import islice, pairwise
from operator import attrgetter
from typing import Any

import orjson
import structlog

from gateway_core.api.limits import list_subjects
from gateway_core.billing.charges import Charge, split_time
from gateway_core.concurrency import back_off
from gateway_core.storage.objects import ObjectStore

PREFIX = "journal/"
_KEY = re.compile(r"journal/([a-z0-9][-a-z0-9]{0,62})/([0-9]{20})\.json")


class JournalDamaged(Exception):
    """A journal object that cannot be read; later objects of its process are not aggregated."""


# not frozen, which takes three times as long to create
@dataclass(slots=True)
class CallRecord:
    """One ended call. `micros` is its cost.

    `operation` is `service/action`, `time` (aware) when it ended, `reached` whether an upstream was
    called. Tokens are counted as in `TokenCounts`, and `output_tokens` include `reasoning_tokens`;
    `estimated`: some of the counts are estimates. `from_cache`: a kept answer was sent, at no cost.
    """

    call: str
    account: str
    time: datetime
    model_id: str
    operation: str
    micros: int = 0
    failed: bool = False
    reached: bool = True
    key_name: str | None = None
    guardrail_names: tuple[str, ...] = ()
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    estimated: bool = False
    from_cache: bool = False
    cached_audio_tokens: int = 0
    written_tokens: int = 0
    written_hour_tokens: int = 0
    audio_tokens: int = 0
    image_tokens: int = 0
    output_audio_tokens: int = 0
    output_image_tokens: int = 0

    def to_charge(self) -> Charge:
        """Return the charge that it adds to the day on which it ended."""
        names = {"keyName": self.key_name, "guardrailNames": self.guardrail_names}
        return Charge(
            name=self.call,
            uid=self.call,
            account=self.account,
            **split_time(self.time),
            micros=self.micros,
            requests=int(self.reached),
            failed=int(self.failed and self.reached),
            key_name=self.key_name,
            model_id=self.model_id,
            operation=self.operation,
            subjects=list_subjects(names),
            input_tokens=self.input_tokens,
            output_tokens=self.output_tokens,
        )


_MOST_TOKENS = 2**32
"""More than a call can use. A record with an absurd count is read with this one instead: the sums
of a day must stay below 2^53, or the account's charges can no longer be aggregated."""
_NAMES = {
    "call": "call",
    "account": "accountName",
    "time": "time",
    "key_name": "keyName",
    "guardrail_names": "guardrailNames",
    "model_id": "modelId",
    "operation": "operation",
    "micros": "micros",
    "failed": "failed",
    "input_tokens": "inputTokens",
    "output_tokens": "outputTokens",
    "cached_tokens": "cachedTokens",
    "reasoning_tokens": "reasoningTokens",
    "cached_audio_tokens": "cachedAudioTokens",
    "written_tokens": "cacheWriteTokens",
    "written_hour_tokens": "cacheWriteHourTokens",
    "audio_tokens": "audioTokens",
    "image_tokens": "imageTokens",
    "output_audio_tokens": "outputAudioTokens",
    "output_image_tokens": "outputImageTokens",
    "estimated": "estimated",
    "from_cache": "fromCache",
}
"""Fields of a record and their names in the JSON; `reached` is stored inverted, as `unreached`."""
_KEYS = tuple(_NAMES.values())
_TOKENS = tuple(name for name in _NAMES if name.endswith("_tokens"))
_AMOUNTS = ("micros", *_TOKENS)
_read = attrgetter(*_NAMES)


@dataclass(frozen=True, slots=True)
class JournalObject:
    """The records that one process wrote at one time."""

    process: str
    sequence: int
    records: tuple[CallRecord, ...]

    @property
    def key(self) -> str:
        """Its key in the object store."""
        return name_object(self.process, self.sequence)


def name_object(process: str, sequence: int) -> str:
    """Return the key of a process's object of that sequence number."""
    return f"{PREFIX}{process}/{sequence:020d}.json"


def parse_name(key: str) -> tuple[str, int] | None:
    """Process and sequence of a key; None if it is no journal object's."""
    found = _KEY.fullmatch(key)
    return (found[1], int(found[2])) if found else None


def encode_object(process: str, sequence: int, records: Iterable[CallRecord]) -> bytes:
    """Return the bytes of an object; always the same for the same records."""
    return b"".join(_encode_in_pieces(process, sequence, tuple(records)))


def _encode_in_pieces(
    process: str, sequence: int, records: Sequence[CallRecord]
) -> Iterator[bytes]:
    """Yield the same in pieces, each of which takes about a millisecond."""
    head = orjson.dumps({"process": process, "sequence": sequence, "calls": []})
    yield head.removesuffix(b"]}")
    for start in range(0, len(records), PIECE_RECORDS):
        parts = [_encode(record) for record in records[start : start + PIECE_RECORDS]]
        yield (b"," if start else b"") + orjson.dumps(parts)[1:-1]
    yield b"]}"


def decode_object(key: str, data: bytes) -> JournalObject:
    """Return the object that was stored under `key`. JournalDamaged."""
    try:
        value = orjson.loads(data)
        process, sequence = value["process"], value["sequence"]
        records = tuple(_decode(part) for part in value["calls"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise JournalDamaged(f"{key}: {type(error).__name__}: {error}") from None
    if parse_name(key) != (process, sequence):
        # a copied or renamed object would be counted twice
        raise JournalDamaged(f"{key} says that it is {sequence} of {process}")
    return JournalObject(process, sequence, records)


def find_missing(sequences: Sequence[int], most: int) -> list[int]:
    """Gaps between sorted `sequences`. JournalDamaged where there are more than `most` numbers."""
    missing: list[int] = []
    for before, after in pairwise(sequences):
        if after - before - 1 > most - len(missing):
            raise JournalDamaged(f"no objects are between {before} and {after}")
        missing += range(before + 1, after)
    return missing


def _encode(record: CallRecord) -> dict[str, Any]:
    part = {name: value for name, value in zip(_KEYS, _read(record), strict=True) if value}
    if not record.reached:
        part["unreached"] = True
    return part


def _decode(part: Any) -> CallRecord:
    values = {field: part[name] for field, name in _NAMES.items() if name in part}
    amounts = [values[field] for field in _AMOUNTS if field in values]
    if any(type(amount) is not int or amount < 0 for amount in amounts):
        raise ValueError("an amount is not a number")
    values |= {name: min(values[name], _MOST_TOKENS) for name in _TOKENS if name in values}
    values["time"] = datetime.fromisoformat(part["time"])
    if values["time"].tzinfo is None:
        raise ValueError("a time has no zone")
    values["guardrail_names"] = tuple(part.get("guardrailNames", ()))
    return CallRecord(**values, reached=not part.get("unreached", False))


PAUSE_SECONDS = 0.75
"""Longest time from the start of one object to the start of the next."""
RISK_SECONDS = 0.95
"""Age of a record when it is stored: a pause and a put together."""
MOST_RECORDS = 5000
"""Records in one object, of about 300 bytes each."""
PIECE_RECORDS = 200
"""Records that are encoded at once."""
MOST_BUFFERED = 50_000
"""Records in memory; beyond that callers wait before their next call."""
FIRST_SECONDS = 0.1
LONGEST_SECONDS = 5.0

Listener = Callable[[Sequence[CallRecord], int], None]
"""Called with the records of an object and its sequence number."""

_log = structlog.get_logger(__name__)


class JournalClosed(Exception):
    """The journal is closed; the cost of the call is recorded nowhere."""


def name_process(role: str, host: str) -> str:
    """Return a unique name for a process that also identifies it to people."""
    words = re.sub(r"[^a-z0-9]+", "-", f"{role}-{host}".lower()).strip("-")[:46].strip("-")
    return f"{words}-{secrets.token_hex(8)}"


class JournalWriter:
    """Writes records while `run` runs; for one event loop.

    `sent` is called with each object before the store gets it, `stored` after the store has it.
    """

    def __init__(
        self,
        store: ObjectStore,
        process: str,
        *,
        sent: Listener = lambda _records, _sequence: None,
        stored: Listener = lambda _records, _sequence: None,
        pause_seconds: float = PAUSE_SECONDS,
        most_buffered: int = MOST_BUFFERED,
    ) -> None:
        self.process = process
        self._store = store
        self._sent = sent
        self._stored = stored
        self._pause = pause_seconds
        self._most = most_buffered
        self._buffer: deque[CallRecord] = deque()
        self._sending: tuple[CallRecord, ...] = ()
        self._sequence = 0
        self._put_seconds = 0.0
        # set together with the state they signal, without an await between: a cancellation there
        # would leave records that nobody writes
        self._some, self._enough = asyncio.Event(), asyncio.Event()
        self._stored_some = asyncio.Condition()
        self._closed = False

    @property
    def unsafe(self) -> int:
        """Records that are lost if the process dies now."""
        return len(self._buffer) + len(self._sending)

    @property
    def has_room(self) -> bool:
        """Whether `wait_for_room` would not wait."""
        return self.unsafe <= self._most

    def add(self, record: CallRecord) -> None:
        """Buffer a record at once, however many there are. JournalClosed."""
        if self._closed:
            _log.error("a call ended too late", call=record.call, lost_micros=record.micros)
            raise JournalClosed(record.call)
        self._buffer.append(record)
        self._some.set()
        if len(self._buffer) >= MOST_RECORDS:
            self._enough.set()

    async def wait_for_room(self) -> None:
        """Wait until the buffer has room; callers do so after `add`, which never waits."""
        async with self._stored_some:
            await self._stored_some.wait_for(lambda: self.has_room)

    async def run(self) -> None:
        """Write until cancelled, or until all records are stored after `close`.

        A further call after an exception resumes with the object that was being stored.
        """
        loop = asyncio.get_running_loop()
        begun = float("-inf")
        if self._sending:
            await self._offer()
        while True:
            await self._some.wait()
            if not self._buffer:
                return
            # the slower the store, the shorter the pause: the age of a record stays bounded
            pause = min(self._pause, RISK_SECONDS - self._put_seconds)
            with suppress(TimeoutError):
                async with asyncio.timeout_at(begun + pause):
                    await self._enough.wait()
            begun = loop.time()
            await self._write()
            # decays slowly: one quick put among slow ones must not lengthen the pause
            took = min(loop.time() - begun, RISK_SECONDS)
            self._put_seconds = max(took, self._put_seconds * 0.8)

    async def close(self) -> None:
        """Refuse further records and wait until all are stored; `run` must be running."""
        self._closed = True
        self._some.set()
        self._enough.set()
        async with self._stored_some:
            await self._stored_some.wait_for(lambda: not self.unsafe)

    async def _write(self) -> None:
        """Store one object, however long that takes."""
        # no await until `_sending` is set: records are always in the buffer or being sent
        records = tuple(islice(self._buffer, MOST_RECORDS))
        for _ in records:
            self._buffer.popleft()
        # after `close` the events stay set, so that `run` drains the buffer without a pause
        if not self._closed:
            if not self._buffer:
                self._some.clear()
            if len(self._buffer) < MOST_RECORDS:
                self._enough.clear()
        # kept until stored: a restarted `run` resends them under the same sequence number
        self._sending = records
        self._sequence += 1
        await self._offer()

    async def _offer(self) -> None:
        """Store the current object; repeating it puts the same bytes under the same key."""
        records = self._sending
        self._sent(records, self._sequence)
        key = name_object(self.process, self._sequence)
        pieces: list[bytes] = []
        for piece in _encode_in_pieces(self.process, self._sequence, records):
            pieces.append(piece)
            # thousands of records would hold up all other calls of the process
            await asyncio.sleep(0)
        data, attempt = b"".join(pieces), 0
        while True:
            try:
                await self._store.put(key, data)
                break
            except Exception as error:  # any: nothing but these records knows of the charges
                attempt += 1
                _log.warning("journal not stored", key=key, error=str(error), records=self.unsafe)
                await asyncio.sleep(back_off(attempt, first=FIRST_SECONDS, longest=LONGEST_SECONDS))
        self._stored(records, self._sequence)
        async with self._stored_some:
            self._sending = ()
            self._stored_some.notify_all()
