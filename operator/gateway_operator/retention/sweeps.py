"""The sweeps of retention, of which the owner of shard 0 runs each at its own pace."""

from gateway_core.admission.intake import IntakeStop
from gateway_core.api.guardrail import GatewayGuardrail
from gateway_core.api.key import GatewayKey
from gateway_core.kube.informer import Cache
from gateway_operator.context import Context
from gateway_operator.retention.bytes import Expiry, RemovedTrim
from gateway_operator.retention.databasesize import DatabaseSize
from gateway_operator.retention.deletions import Deletions
from gateway_operator.retention.ended import BATCHES, UPLOADS, EndedRemoval
from gateway_operator.retention.revokedkeys import RevokedKeys
from gateway_operator.retention.tasks import TaskRemoval
from gateway_operator.retention.usage import DayClosing
from gateway_operator.schedule import Sweep
from gateway_operator.settings import Settings
from gateway_operator.uploads.controller import UploadController

CLOSING_SECONDS = 3600.0
EXPIRY_SECONDS = 6 * 3600.0


def plan_sweeps(
    context: Context,
    settings: Settings,
    keys: Cache[GatewayKey],
    guardrails: Cache[GatewayGuardrail],
    uploads: UploadController,
    intake_stop: IntakeStop,
) -> tuple[Sweep, ...]:
    """What is removed, and how often; and the sample of the record's size, if its quota is set."""
    kube, store, now, rules = context.kube, context.store, context.now, settings.rules
    deletions = Deletions(kube, context.failpoints)
    tasks = TaskRemoval(kube, rules, context.metrics, deletions, now)
    batches = EndedRemoval(
        kube, deletions, BATCHES, now, kept_seconds=rules.batches, most=rules.ended
    )
    ended = EndedRemoval(
        kube,
        deletions,
        UPLOADS,
        now,
        kept_seconds=rules.uploads,
        most=rules.ended,
        resume=uploads.queue.add,
    )
    revoked = RevokedKeys(kube, store, deletions, keys, guardrails)
    sweeps = (
        Sweep("finished tasks", tasks.sweep, settings.sweep_seconds),
        Sweep("days of usage", DayClosing(kube, store, rules, now).sweep, CLOSING_SECONDS),
        Sweep("ended batches", batches.sweep, settings.sweep_seconds),
        Sweep("ended uploads", ended.sweep, settings.sweep_seconds),
        Sweep("revoked keys", revoked.sweep, settings.sweep_seconds),
        Sweep("removed keys and guardrails", RemovedTrim(store).sweep, CLOSING_SECONDS),
        Sweep("bytes of the past", Expiry(store, rules, now).sweep, EXPIRY_SECONDS),
    )
    if not settings.record_quota_bytes:
        return sweeps
    size = DatabaseSize(
        kube.read_etcd_size,
        intake_stop,
        context.metrics,
        quota=settings.record_quota_bytes,
        stop_percent=settings.record_stop_percent,
    )
    return (*sweeps, Sweep("record size", size.sample, settings.record_seconds))
