"""What a process knows of its own submissions of a task; kept in memory only."""

import time
from dataclasses import dataclass

from gateway_core.api.task import GatewayTask, UpstreamJob
from gateway_core.providers.upstream import SubmissionGuarantee, Upstream

FRESH_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class ReceivedJob:
    """A job whose id a provider has returned, and the task as it was submitted."""

    id: str
    provider_name: str
    task: GatewayTask


@dataclass(slots=True)
class Attempt:
    """Own attempts at a submission; none of it is needed to continue safely.

    `intent_time` is the newest intent of its own, which it began to write at `recorded_at`, before
    any call; never, where the task's request names the route and the intent was held back.
    `outcome_known` is false from the moment a call may have made a job until it is certain that it
    has not; `job` is one that was received and may not be recorded yet. `written` is an intent of
    its own, and when its write began, that may be on record and was not found there yet.
    `seen_intent` is the newest intent of any owner, in force since before `seen_at`. No call is
    made before `due`.
    """

    intent_time: str | None = None
    seen_intent: str | None = None
    seen_at: float = float("-inf")
    recorded_at: float = float("-inf")
    written: tuple[str, float] | None = None
    outcome_known: bool = False
    job: ReceivedJob | None = None
    due: float = float("-inf")
    failures: int = 0
    denied_since: float | None = None

    @property
    def is_fresh(self) -> bool:
        """True if the intent is so new that no other owner can have taken the task over since."""
        return time.monotonic() - self.recorded_at <= FRESH_SECONDS

    def rules_out_job(self, intent: UpstreamJob) -> bool:
        """Return whether certainly no job was made by this intent, the newest on record.

        An intent of another owner, who has taken over meanwhile, proves nothing about its calls.
        """
        return self.recorded_at > float("-inf") and self.knows_outcome(intent)

    def knows_outcome(self, intent: UpstreamJob) -> bool:
        """Return whether the intent is an own one, and none of the own calls made a job by it."""
        return self.outcome_known and self.intent_time == intent.intent_time

    def see(self, intent_time: str, at: float) -> None:
        """Note the intent on record, which was written before `at`, or begun then."""
        if intent_time != self.seen_intent:
            self.seen_intent, self.seen_at = intent_time, at


def is_keyed(upstream: Upstream) -> bool:
    """Return whether a repeated submission returns the same job."""
    return upstream.guarantee is SubmissionGuarantee.IDEMPOTENCY_KEY
