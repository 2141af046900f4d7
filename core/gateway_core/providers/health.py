"""Figures on calls to providers and models in the last minutes, of all processes together.

Each process adds to plain numbers at a call, and reports its sums of three minutes to Redis every
ten seconds. A report expires, so the figures of a process that has died or has lost Redis leave the
sum within half a minute. The operator writes the sum into the status of providers and models.
"""

import asyncio
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import astuple, dataclass, field, fields

import orjson
import structlog

from gateway_core.api.resource import Health, HealthState
from gateway_core.kube.clock import CLOCK
from gateway_core.providers.upstream import UpstreamDenied, UpstreamError, UpstreamRejected
from gateway_core.redis.link import CountersUnavailable, RedisAdapter

REPORT_SECONDS = 10.0
PERIODS = 18
"""Reported figures are of the last 180 s."""
EXPIRE_SECONDS = 30
"""Life of a report: two may be lost before the process's figures leave the sum."""

LEAST_FAILURES = 5
"""Fewer failures do not show a provider as failing."""
DEGRADED_PERCENT = 5
FAILING_PERCENT = 50

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Figures:
    """Sums over calls. `seconds` are of the `answered` ones, `first_seconds` of the `streamed`."""

    calls: int = 0
    failures: int = 0
    denials: int = 0
    answered: int = 0
    seconds: float = 0.0
    streamed: int = 0
    first_seconds: float = 0.0
    circuits: int = 0
    """Processes that have a circuit breaker for the subject, and of them those with it open."""
    open_circuits: int = 0

    def add(self, other: "Figures") -> None:
        """Add the other's sums."""
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))

    def note_answer(self, seconds: float, first_seconds: float | None = None) -> None:
        """Count a call that was answered in so many seconds, its first output after fewer."""
        self.calls += 1
        self.answered += 1
        self.seconds += seconds
        if first_seconds is not None:
            self.streamed += 1
            self.first_seconds += first_seconds

    def note_failure(self, *, denied: bool = False) -> None:
        """Count a call that failed by the provider's fault, or because it denied the credentials.

        One whose input the provider rejected is no failure.
        """
        self.calls += 1
        self.failures += 1
        self.denials += denied


Sums = defaultdict[str, Figures]


def _make_sums() -> Sums:
    return defaultdict(Figures)


@dataclass(slots=True)
class Report:
    """Figures by name of the provider's or the model's object."""

    providers: Sums = field(default_factory=_make_sums)
    models: Sums = field(default_factory=_make_sums)

    def add(self, other: "Report") -> None:
        """Add the other's figures."""
        for own, others in ((self.providers, other.providers), (self.models, other.models)):
            for name, figures in others.items():
                own[name].add(figures)

    def encode(self) -> bytes:
        """Return the report as another process reads it."""
        return orjson.dumps(
            {
                "providers": {name: astuple(each) for name, each in self.providers.items()},
                "models": {name: astuple(each) for name, each in self.models.items()},
            }
        )


def decode_report(raw: bytes) -> Report:
    """Return the report of a process.

    The report is empty where another release wrote it in another form.
    """
    report = Report()
    try:
        parts = orjson.loads(raw)
        for name, own in (("providers", report.providers), ("models", report.models)):
            own.update({subject: Figures(*values) for subject, values in parts[name].items()})
    except (ValueError, TypeError, KeyError, AttributeError):
        return Report()
    return report


class HealthTally:
    """What this process knows of its own calls. Memory: one entry for each name in each period."""

    def __init__(self) -> None:
        self._periods = deque([Report()], maxlen=PERIODS)

    @property
    def providers(self) -> Sums:
        """Figures of the present period, by provider; a missing one is added."""
        return self._periods[-1].providers

    @property
    def models(self) -> Sums:
        """The same by model."""
        return self._periods[-1].models

    @contextmanager
    def watch(self, provider: str, model: str) -> Iterator[None]:
        """Count and time one call that a model's provider answers at once."""
        began = time.monotonic()
        try:
            yield
        except UpstreamRejected:
            raise
        except UpstreamError as error:
            for figures in (self.providers[provider], self.models[model]):
                figures.note_failure(denied=isinstance(error, UpstreamDenied))
            raise
        seconds = time.monotonic() - began
        for figures in (self.providers[provider], self.models[model]):
            figures.note_answer(seconds)

    def turn(self) -> None:
        """Begin a new period; the oldest one is forgotten."""
        self._periods.append(Report())

    def sum(self) -> Report:
        """Return the figures of all periods."""
        total = Report()
        for period in self._periods:
            total.add(period)
        return total


class HealthReports(RedisAdapter):
    """The last report of each process. Every method raises CountersUnavailable."""

    async def write(self, process: str, report: bytes) -> None:
        """Replace the report of a process; it expires unless it is written again."""
        now = int(CLOCK.time())
        pipeline = self._open_pipeline()
        pipeline.set(f"{self._key}:{process}", report, ex=EXPIRE_SECONDS)
        pipeline.zadd(self._key, {process: now})
        pipeline.zremrangebyscore(self._key, "-inf", now - 10 * EXPIRE_SECONDS)
        pipeline.expire(self._key, 10 * EXPIRE_SECONDS)
        await self._ask_all(pipeline)

    async def read(self) -> list[bytes]:
        """Return the reports of all processes."""
        processes = await self._ask(self._redis.zrange(self._key, 0, -1))
        if not processes:
            return []
        keys = [f"{self._key}:{process.decode()}" for process in processes]
        found = await self._ask(self._redis.mget(keys))
        return [report for report in found if report is not None]

    @property
    def _key(self) -> str:
        return f"{self._head.removesuffix('/')}}}:health"


class HealthReporter:
    """Reports a process's tally while `run` runs.

    `find_circuit` tells whether the circuit of a provider is open, None where it has none.
    """

    def __init__(
        self,
        tally: HealthTally,
        reports: HealthReports,
        process: str,
        find_circuit: Callable[[str], bool | None] = lambda _: None,
    ) -> None:
        self._tally = tally
        self._reports = reports
        self._process = process
        self._find_circuit = find_circuit

    async def run(self) -> None:
        """Report until cancelled."""
        while True:
            await asyncio.sleep(REPORT_SECONDS)
            await self.report()

    async def report(self) -> None:
        """Report the last three minutes, and begin a new period. Without any call nothing is sent.

        A report that fails is made good by the next one.
        """
        total = self._tally.sum()
        self._tally.turn()
        if not total.providers and not total.models:
            return
        for name, figures in total.providers.items():
            is_open = self._find_circuit(name)
            figures.circuits, figures.open_circuits = int(is_open is not None), int(bool(is_open))
        try:
            await self._reports.write(self._process, total.encode())
        except CountersUnavailable as error:
            _log.info("the health of providers was not reported", error=str(error))


def sum_reports(raw: Iterable[bytes]) -> Report:
    """Return the figures of all processes together."""
    total = Report()
    for each in raw:
        total.add(decode_report(each))
    return total


def describe_health(figures: Figures, shown: Health | None) -> Health | None:
    """Return what a status shows of `figures`, None where no call was made.

    A figure that hardly differs from the shown one stays as it is, so that noise writes nothing.
    """
    if not figures.calls:
        return None
    before: Mapping[str, int | None] = {} if shown is None else shown.model_dump()
    percent = 100 * figures.failures / figures.calls
    values = {
        "calls_per_minute": _steady(
            figures.calls * 60 / (PERIODS * REPORT_SECONDS),
            before.get("calls_per_minute"),
            slack=0.3,
        ),
        "error_percent": _steady(percent, before.get("error_percent"), slack=0.1),
        "latency_millis": _steady_mean(
            figures.seconds, figures.answered, before.get("latency_millis")
        ),
        "first_token_millis": _steady_mean(
            figures.first_seconds, figures.streamed, before.get("first_token_millis")
        ),
    }
    return Health(state=_find_state(figures, values["error_percent"] or 0), **values)


def _find_state(figures: Figures, percent: int) -> HealthState:
    all_open = figures.open_circuits and figures.open_circuits == figures.circuits
    if all_open or (figures.failures >= LEAST_FAILURES and percent >= FAILING_PERCENT):
        return "Failing"
    if figures.open_circuits or percent >= DEGRADED_PERCENT:
        return "Degraded"
    return "Healthy"


def _steady_mean(seconds: float, count: int, shown: int | None) -> int | None:
    return _steady(1000 * seconds / count, shown, slack=0.2) if count else None


def _steady(value: float, shown: int | None, *, slack: float) -> int:
    """`value` with two digits, or `shown` where it differs by no more than the part `slack`.

    Zero is shown for zero alone.
    """
    if value and shown and abs(value - shown) <= max(1.0, slack * shown):
        return shown
    whole = round(value)
    step: int = 10 ** max(0, len(str(whole)) - 2)
    return max(round(whole / step) * step, int(value > 0))
