"""The vocabulary of misbehaviour: the document of PUT /control, validated strictly.

`rulebook` decides when a rule applies, `provider` and `faults` do what it says. `docs/simulator.md`
shows each one in use; a test holds the two together.
"""

import math
from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import Annotated, ClassVar, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    model_validator,
)

MEGABYTE = 1_000_000
LONGEST = 86_400.0


@dataclass(frozen=True, slots=True)
class Spread:
    """A range of seconds from which each job draws its own length, uniformly."""

    low: float
    high: float

    def draw(self, source: Random) -> float:
        """Return one length in seconds."""
        return self.low if self.low == self.high else source.uniform(self.low, self.high)

    def __str__(self) -> str:
        """Return the form that `parse_spread` reads."""
        return f"{self.low:g}" if self.low == self.high else f"{self.low:g}-{self.high:g}"


def parse_spread(value: object) -> Spread:
    """Read a number of seconds or "min-max"; raise ValueError for anything else."""
    if isinstance(value, Spread):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError('must be a number of seconds or "min-max"')  # noqa: TRY004  pydantic's rule
    low, dash, high = str(value).partition("-")
    try:
        spread = Spread(float(low), float(high if dash else low))
    except ValueError:
        raise ValueError('must be a number of seconds or "min-max"') from None
    if not all(math.isfinite(bound) for bound in (spread.low, spread.high)):
        raise ValueError("must be finite")
    if not 0 <= spread.low <= spread.high <= LONGEST:
        raise ValueError(f"must rise and lie within 0 and {LONGEST:g} seconds")
    return spread


SpreadField = Annotated[Spread, BeforeValidator(parse_spread), PlainSerializer(str)]
"""A `Spread` as a pydantic field."""


class Point(StrEnum):
    """The requests at which a rule can apply."""

    SUBMIT = "submit"
    POLL = "poll"
    CANCEL = "cancel"
    LOOKUP = "lookup"
    OUTPUT = "output"
    MODERATE = "moderate"
    GENERATE = "generate"


class _Document(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class HeaderMatch(_Document):
    """A header that a request has with this value, or at all."""

    name: str = Field(pattern=r"^[!-9;-~]+$")
    value: str | None = None


class Match(_Document):
    """Which requests a rule is for: all that are left open match."""

    on: Point | None = None
    prompt_contains: str | None = Field(default=None, min_length=1)
    header: HeaderMatch | None = None


class Rule(_Document):
    """What all rules have. `points` are the requests at which the behaviour has a meaning."""

    points: ClassVar[frozenset[Point]] = frozenset(Point)
    sees_headers: ClassVar[bool] = False
    """Whether `match.header` has a meaning for it."""

    match: Match = Match()
    probability: float = Field(default=1.0, ge=0, le=1)
    count: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _check_point(self) -> "Rule":
        if self.match.on is not None and self.match.on not in self.points:
            known = ", ".join(sorted(self.points))
            raise ValueError(f"match.on must be one of: {known}")
        if self.match.header is not None and not self.sees_headers:
            raise ValueError("match.header is for what happens to the exchange")
        return self


class _AtSubmission(Rule):
    points: ClassVar[frozenset[Point]] = frozenset({Point.SUBMIT})


class _AtPoll(Rule):
    points: ClassVar[frozenset[Point]] = frozenset({Point.POLL})


# What becomes of a job, decided at its submission.


class Seconds(_AtSubmission):
    """The job takes this long."""

    behaviour: Literal["seconds"]
    seconds: SpreadField


class Stall(_AtSubmission):
    """The job never ends."""

    behaviour: Literal["stall"]


class Fail(_AtSubmission):
    """The job ends in the state `error`."""

    behaviour: Literal["fail"]
    code: str = Field(default="generation_failed", min_length=1)
    message: str = "The generation failed."


class IgnoreIdempotency(_AtSubmission):
    """A known Idempotency-Key makes another job."""

    behaviour: Literal["ignore_idempotency"]


class DuplicateId(_AtSubmission):
    """The job is recorded, and the answer carries an earlier job whose prompt matches too."""

    behaviour: Literal["duplicate_id"]


class LoseJob(Rule):
    """Polls and look-ups do not know the job afterwards."""

    points: ClassVar[frozenset[Point]] = frozenset({Point.SUBMIT, Point.POLL})
    behaviour: Literal["lose_job"]


# What a poll shows.


class Contradict(_AtPoll):
    """The poll contradicts the API's own rules, or an earlier poll."""

    behaviour: Literal["contradict"]
    kind: Literal["done_without_outputs", "done_then_rendering", "unknown_state"]


class ForeignOutput(_AtPoll):
    """The poll of a job that is done names an output somewhere else."""

    behaviour: Literal["foreign_output"]
    url: str = Field(default="http://169.254.169.254/latest/meta-data/", min_length=1)


# What a moderation says.


class Incomplete(Rule):
    """The answer to a moderation lacks something that others of its dialect have."""

    points: ClassVar[frozenset[Point]] = frozenset({Point.MODERATE})
    behaviour: Literal["incomplete"]
    kind: Literal["input_types", "categories", "results"]


# What becomes of the stream of a language model.


class BreakStream(Rule):
    """The stream of an answer breaks after so many frames."""

    points: ClassVar[frozenset[Point]] = frozenset({Point.GENERATE})
    behaviour: Literal["break_stream"]
    kind: Literal["error", "drop", "stall", "junk"]
    frames: int = Field(default=3, ge=0)


# What happens to the exchange, whatever it is about.


class _OfExchange(Rule):
    sees_headers: ClassVar[bool] = True


class Limit(_OfExchange):
    """Answers 429 to what is more than so many of the matching requests in any second."""

    behaviour: Literal["limit"]
    per_second: int = Field(ge=1, le=100_000)


class Timed(_OfExchange):
    """Happens before the request has its effect, or after."""

    when: Literal["before", "after"] = "before"


class Hang(Timed):
    """The answer waits; then the request goes on as if nothing had been."""

    behaviour: Literal["hang"]
    seconds: float = Field(gt=0, le=LONGEST)


class Refusal(Timed):
    """The answer is not the one the request would have had."""


class Status(Refusal):
    """The answer is an error status."""

    behaviour: Literal["status"]
    status: int = Field(ge=400, le=599)
    retry_after: int | Annotated[str, Field(pattern=r"^[ -~]*$")] | None = None
    code: str = "simulated_status"
    message: str = "The simulated provider was told to answer this."


class Drop(Refusal):
    """The connection closes without an answer."""

    behaviour: Literal["drop"]


class Nonsense(_OfExchange):
    """The request has its effect; the answer cannot be read."""

    points: ClassVar[frozenset[Point]] = frozenset(Point) - {Point.OUTPUT}
    behaviour: Literal["nonsense"]
    kind: Literal["not_json", "wrong_json", "html", "truncated", "huge", "wrong_length"]
    bytes: int = Field(default=64 * MEGABYTE, ge=1)
    """The size of the body of the kind `huge`."""


class Slow(_OfExchange):
    """The answer's body comes in drips."""

    behaviour: Literal["slow"]
    bytes_per_second: float = Field(default=20.0, gt=0)


class BadOutput(Rule):
    """The output file is not what it should be."""

    points: ClassVar[frozenset[Point]] = frozenset({Point.OUTPUT})
    behaviour: Literal["bad_output"]
    kind: Literal[
        "not_found", "wrong_type", "not_video", "empty", "truncated", "redirect", "oversized"
    ]
    location: str = Field(default="http://169.254.169.254/latest/meta-data/", pattern=r"^[!-~]+$")
    """Where the kind `redirect` points."""
    bytes: int = Field(default=1000 * MEGABYTE, ge=1)
    """The size of the kind `oversized`."""
    declare_length: bool = True
    """Whether `oversized` says its size in Content-Length."""


AnyRule = Annotated[
    Seconds
    | Stall
    | Fail
    | IgnoreIdempotency
    | DuplicateId
    | LoseJob
    | Contradict
    | ForeignOutput
    | Incomplete
    | BreakStream
    | Limit
    | Hang
    | Status
    | Drop
    | Nonsense
    | Slow
    | BadOutput,
    Field(discriminator="behaviour"),
]


class Control(_Document):
    """The whole document: what a PUT replaces and a DELETE resets to its defaults."""

    require_auth: bool = True
    seed: int | None = None
    """Makes the draws of probabilities and durations repeatable."""
    rules: list[AnyRule] = Field(default=[], max_length=100)
