"""A job of the simulated provider: what was asked for, what is to come of it, and where it is now.

Nothing runs while a job is under way: its state is computed from the clock whenever somebody
asks, so that thousands of jobs cost memory only. Used by `ledger` and `provider`.
"""

from collections import deque
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from importlib.resources import files
from itertools import product
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, model_validator

AspectRatio = Literal["16:9", "9:16", "1:1", "4:3", "3:4"]

QUEUED_SHARE = 0.1
"""The part of a job's time that it is queued, before it is rendering."""

POLL_TIMES_KEPT = 20


class State(StrEnum):
    """The words for a job's state on the wire."""

    QUEUED = "queued"
    RENDERING = "rendering"
    DONE = "done"
    ERROR = "error"
    CANCELLED = "cancelled"

    @property
    def ended(self) -> bool:
        """Whether the state is final."""
        return self in (State.DONE, State.ERROR, State.CANCELLED)


class JobRequest(BaseModel):
    """The body of POST /v1/jobs. Unknown fields are refused; null is the same as absent."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    model: str = Field(min_length=1, max_length=200)
    prompt: str = Field(min_length=1, max_length=20_000)
    image_urls: list[str] = Field(default=[], max_length=15)
    audio_urls: list[str] = Field(default=[], max_length=3)
    aspect_ratio: AspectRatio = "16:9"
    with_audio: bool = True
    seconds: int = Field(default=5, ge=1, le=60)
    resolution: str = Field(default="720p", max_length=16)
    client_reference: str | None = Field(default=None, max_length=200)

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, data: Any) -> Any:
        if isinstance(data, dict):
            return {name: value for name, value in data.items() if value is not None}
        return data


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to come of a job, decided at its submission.

    `seconds` is how long it takes (None: it never ends), `code` and `message` are those of its
    failure (None: it ends well).
    """

    seconds: float | None
    code: str | None = None
    message: str | None = None


@dataclass(slots=True)
class Job:
    """One job. `created_at` and `cancelled_at` are seconds since the epoch."""

    id: str
    key: str | None
    request: JobRequest
    plan: Plan
    created_at: float
    file_name: str
    cancelled_at: float | None = None
    lost: bool = False
    shown_done: bool = False
    polls: int = 0
    poll_times: deque[float] = field(default_factory=lambda: deque(maxlen=POLL_TIMES_KEPT))

    def state(self, now: float) -> State:
        """Return the state at the time `now`."""
        if self.cancelled_at is not None:
            return State.CANCELLED
        elapsed = now - self.created_at
        if self.plan.seconds is None:
            return State.RENDERING if elapsed > 0 else State.QUEUED
        if elapsed >= self.plan.seconds:
            return State.DONE if self.plan.code is None else State.ERROR
        return State.RENDERING if elapsed >= self.plan.seconds * QUEUED_SHARE else State.QUEUED

    def note_poll(self, now: float) -> None:
        """Count one poll."""
        self.polls += 1
        self.poll_times.append(now)

    def describe(self, now: float, url: str, *, shown_as: State | None = None) -> dict[str, Any]:
        """Return the job as the API shows it, its output at `url`, or as if `shown_as`."""
        state = shown_as or self.state(now)
        return {
            "id": self.id,
            "state": state.value,
            "client_reference": self.request.client_reference,
            "created_at": format_time(self.created_at),
            "seconds": self.request.seconds,
            "outputs": [{"url": url, "content_type": "video/mp4"}] if state is State.DONE else [],
            "error": (
                {"code": self.plan.code, "message": self.plan.message}
                if state is State.ERROR
                else None
            ),
        }


def format_time(seconds: float) -> str:
    """Return a time since the epoch as RFC 3339 in UTC, to the millisecond."""
    moment = datetime.fromtimestamp(seconds, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


class Videos:
    """The MP4 files of every output, 2.5 s each, read into memory once (250 kB).

    `tools/make_clips.sh` draws them.
    """

    def __init__(self) -> None:
        folder = files("gateway_simulator") / "clips"
        self._clips = {
            (ratio, sound): (folder / _name(ratio, sound=sound)).read_bytes()
            for ratio, sound in product(get_args(AspectRatio), (True, False))
        }

    def get(self, ratio: AspectRatio, *, sound: bool) -> bytes:
        """Return the clip of an aspect ratio, with or without sound."""
        return self._clips[ratio, sound]


def _name(ratio: str, *, sound: bool) -> str:
    return f"{ratio.replace(':', 'x')}-{'audio' if sound else 'silent'}.mp4"
