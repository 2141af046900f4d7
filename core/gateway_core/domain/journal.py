"""The usage journal: what calls that leave no object have cost, as immutable objects in the store.

Pure. Each process writes one about every second, when there is something to write, numbered from 1:
number n + 1 is written only once n is known to be stored. So what is missing before one that is
there has been folded and removed, and is not yet to come.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import orjson

from gateway_core.contract.limits import list_subjects
from gateway_core.domain.usage import Charge

PREFIX = "journal/"
_KEY = re.compile(r"journal/([a-z0-9][-a-z0-9]{0,62})/([0-9]{20})\.json")


class JournalDamaged(Exception):
    """An object of the journal that cannot be read; nothing that comes after it is folded."""


@dataclass(frozen=True, slots=True)
class CallRecord:
    """One ended call. `micros` is what it cost, input tokens are with those read from a cache.

    `operation` is service and action with a slash between, `time` (aware) when it ended, `reached`
    whether an upstream was called.
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

    @property
    def subjects(self) -> tuple[str, ...]:
        """What it counts under."""
        names = {"keyName": self.key_name, "guardrailNames": self.guardrail_names}
        return list_subjects(names)

    def to_charge(self) -> Charge:
        """What it adds to the day on which it ended."""
        moment = self.time.astimezone(UTC)
        return Charge(
            name=self.call,
            uid=self.call,
            account=self.account,
            day=moment.date().isoformat(),
            minute=moment.hour * 60 + moment.minute,
            micros=self.micros,
            requests=int(self.reached),
            failed=int(self.failed and self.reached),
            key_name=self.key_name,
            model_id=self.model_id,
            operation=self.operation,
            subjects=self.subjects,
            input_tokens=self.input_tokens,
            output_tokens=self.output_tokens,
        )


@dataclass(frozen=True, slots=True)
class JournalObject:
    """What one process wrote at one time."""

    process: str
    sequence: int
    records: tuple[CallRecord, ...]

    @property
    def key(self) -> str:
        """Where it is in the store."""
        return name_object(self.process, self.sequence)


def name_object(process: str, sequence: int) -> str:
    """The key of a process's object of that number."""
    return f"{PREFIX}{process}/{sequence:020d}.json"


def parse_name(key: str) -> tuple[str, int] | None:
    """Process and number of a key; None for what is no object of the journal."""
    found = _KEY.fullmatch(key)
    return (found[1], int(found[2])) if found else None


def encode_object(process: str, sequence: int, records: Iterable[CallRecord]) -> bytes:
    """The bytes of an object; the same whenever it is encoded."""
    parts = [_encode(record) for record in records]
    return orjson.dumps({"process": process, "sequence": sequence, "calls": parts})


def decode_object(key: str, data: bytes) -> JournalObject:
    """The object that was stored under `key`. JournalDamaged."""
    try:
        value = orjson.loads(data)
        process, sequence = value["process"], value["sequence"]
        records = tuple(_decode(part) for part in value["calls"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise JournalDamaged(f"{key}: {type(error).__name__}: {error}") from None
    if parse_name(key) != (process, sequence):
        raise JournalDamaged(f"{key} says that it is {sequence} of {process}")
    return JournalObject(process, sequence, records)


def find_missing(sequences: Sequence[int], most: int) -> list[int]:
    """Numbers between those, which are in order. JournalDamaged: there are more than `most`."""
    missing: list[int] = []
    for before, after in pairwise(sequences):
        if after - before - 1 > most - len(missing):
            raise JournalDamaged(f"no objects are between {before} and {after}")
        missing += range(before + 1, after)
    return missing


def _encode(record: CallRecord) -> dict[str, Any]:
    part = {
        "call": record.call,
        "accountName": record.account,
        "time": record.time.astimezone(UTC).isoformat(),
        "keyName": record.key_name,
        "guardrailNames": list(record.guardrail_names),
        "modelId": record.model_id,
        "operation": record.operation,
        "micros": record.micros,
        "failed": record.failed,
        "unreached": not record.reached,
        "inputTokens": record.input_tokens,
        "outputTokens": record.output_tokens,
        "cachedTokens": record.cached_tokens,
    }
    return {name: value for name, value in part.items() if value}


def _decode(part: Any) -> CallRecord:
    amounts = {
        field: part.get(name, 0)
        for field, name in (
            ("micros", "micros"),
            ("input_tokens", "inputTokens"),
            ("output_tokens", "outputTokens"),
            ("cached_tokens", "cachedTokens"),
        )
    }
    if any(type(amount) is not int or amount < 0 for amount in amounts.values()):
        raise ValueError("an amount is no number")
    time = datetime.fromisoformat(part["time"])
    if time.tzinfo is None:
        raise ValueError("a time is of no zone")
    return CallRecord(
        call=part["call"],
        account=part["accountName"],
        time=time,
        key_name=part.get("keyName"),
        guardrail_names=tuple(part.get("guardrailNames", ())),
        model_id=part["modelId"],
        operation=part["operation"],
        failed=part.get("failed", False),
        reached=not part.get("unreached", False),
        **amounts,
    )
