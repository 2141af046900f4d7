"""Charges of ended runs: what each adds to the usage of its account and day."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from gateway_core.api import batch
from gateway_core.api.batch import ACTION
from gateway_core.api.ids import is_batch
from gateway_core.api.limits import list_subjects
from gateway_core.api.task import TERMINAL_PHASES

ENDED_PHASES = TERMINAL_PHASES | frozenset(batch.TERMINAL_PHASES)
"""Terminal phases of tasks and batches; the same words mean the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Amounts:
    """Amounts of one day, key, model and operation; None where unknown or not asked for.

    `day` is `2026-11-21`, `micros` are micro-dollars. `requests` are calls that reached an upstream
    (contract §9.0); each line of a batch that was sent is one. `failed` are those of them that
    failed.
    """

    day: str | None = None
    key_name: str | None = None
    model_id: str | None = None
    operation: str | None = None
    requests: int = 0
    failed: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    micros: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Charge(Amounts):
    """One ended run. `minute` is of the day on which it ended, 0 to 1439.

    `subjects` are the key and guardrails that it counts under (`api.limits.list_subjects`).
    """

    name: str
    uid: str
    account: str
    day: str = ""
    minute: int
    requests: int = 1
    subjects: tuple[str, ...] = ()

    @property
    def counts(self) -> bool:
        """Whether it adds anything: a run that reached no upstream takes no row."""
        return bool(self.requests or self.micros)

    @property
    def time(self) -> str:
        """When it ended, to the minute."""
        return f"{self.day}T{self.minute // 60:02}:{self.minute % 60:02}:00Z"


def split_time(time: datetime) -> dict[str, Any]:
    """Return the `day` and `minute` of a charge at `time` (aware)."""
    moment = time.astimezone(UTC)
    return {"day": moment.date().isoformat(), "minute": moment.hour * 60 + moment.minute}


def read_charge(run: Mapping[str, Any]) -> Charge:
    """Return the charge of an ended task or batch; always the same for the same object."""
    meta, request, status = run["metadata"], run["spec"]["request"], run["status"]
    requests, failed = _count_requests(status)
    about = {"action": ACTION, **status} if is_batch(meta["name"]) else request
    ended = status.get("completionTime") or meta["creationTimestamp"]
    return Charge(
        name=meta["name"],
        uid=meta["uid"],
        account=request["accountName"],
        **split_time(datetime.fromisoformat(ended)),
        micros=status.get("chargedMicros") or 0,
        requests=requests,
        failed=failed,
        key_name=request.get("keyName"),
        model_id=about["modelId"],
        operation=f"{about['service']}/{about['action']}",
        subjects=list_subjects(request),
    )


def has_charge(run: Mapping[str, Any]) -> bool:
    """Return whether an ended run belongs into its account's usage: a batch once it started."""
    status = run.get("status") or {}
    return not is_batch(run["metadata"]["name"]) or bool(status.get("startTime"))


def describe_charge(run: Mapping[str, Any]) -> str:
    """Return the charge of an ended run, for a log line from which it can be added elsewhere."""
    account, status = run["spec"]["request"]["accountName"], run["status"]
    micros, ended = status.get("chargedMicros") or 0, status.get("completionTime")
    return f"the charge of {micros} micro-dollars to account {account}, ended at {ended}"


def read_ended(run: Mapping[str, Any]) -> Charge | None:
    """Return the charge of a task or batch.

    Return None where it has not ended or belongs into no usage.
    """
    has_ended = (run.get("status") or {}).get("phase") in ENDED_PHASES
    return read_charge(run) if has_ended and has_charge(run) else None


def _count_requests(status: Mapping[str, Any]) -> tuple[int, int]:
    """Return the calls of an ended run that reached an upstream, and those of them that failed."""
    counts = status.get("counts")
    if counts:
        # batches that ended before `sent` was recorded
        sent = counts.get("sent", counts["completed"] + counts["failed"])
        return sent, sent - counts["completed"]
    if status["phase"] != "Failed":
        return 1, 0
    reached = int(bool(status.get("upstream")))
    return reached, reached
