"""Problems of a process of the gateway that its own metrics show."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from math import isinf

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from gateway_cli.inspection.findings import Finding, error, note, warning
from gateway_cli.output import count
from gateway_core.api.ids import SHARDS

SKEW_SECONDS = 2.0
SILENCE_SECONDS = 30.0
QUOTA_SHARE = 0.8
UNSTORED_RECORDS = 2000
FOLD_WAITING = 1000

INTAKE = {
    "maintenance": "set the chart value api.maintenance to false when the work is done",
    "quota": "give etcd a larger quota, or let retention remove tasks sooner (docs/retention.md)",
    "refused": "etcd is full, or a ResourceQuota forbids objects: free space at once",
}


Samples = Mapping[str, list[Sample]]


def parse_metrics(text: str) -> Samples:
    """Return the samples by name. ValueError if the text is not of Prometheus's format."""
    samples: defaultdict[str, list[Sample]] = defaultdict(list)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            samples[sample.name].append(sample)
    return samples


def check_metrics(instance: str, samples: Samples, earlier: Samples) -> Iterator[Finding]:
    """Yield what is wrong with one process; `earlier` are its samples of a moment before."""
    for sample in samples.get("gateway_intake_stopped", ()):
        if sample.value:
            reason = sample.labels.get("reason", "")
            text = f"requests that create are refused with 503 ({reason})"
            yield error(instance, text, INTAKE.get(reason, "see docs/alerts.md"))
    for sample in samples.get("gateway_provider_usable", ()):
        if not sample.value:
            text = f"cannot use provider {sample.labels.get('provider')}"
            yield error(
                instance, text, "read its Ready condition; chart value moderation.providerSecrets"
            )
    skew = _sum(samples, "gateway_clock_skew_seconds")
    if abs(skew) > SKEW_SECONDS:
        text = f"the clock of its machine differs from the control plane's by {skew:.1f} s"
        yield warning(instance, text, "synchronise the clocks (NTP)")
    watches = samples.get("gateway_watch_silence_seconds", ())
    silent = [sample for sample in watches if sample.value > SILENCE_SECONDS]
    if silent:
        kinds = ", ".join(sorted(sample.labels.get("kind", "") for sample in silent))
        which = f"its watch of {kinds} is" if len(silent) == 1 else f"its watches of {kinds} are"
        # a Kubernetes API that is away silences all of them
        if len(silent) == len(watches) > 1:
            which = "all of its watches are"
        seconds = max(sample.value for sample in silent)
        since = "since its start" if isinf(seconds) else f"for {seconds:.0f} s"
        text = f"{which} silent {since}"
        yield error(instance, text, "look at the Kubernetes API, then restart the pod")
    yield from _check_counters(instance, samples, earlier)
    if _sum(samples, "gateway_counters_evict"):
        text = "Redis may evict keys: sums are rebuilt again and again, users are signed out"
        yield warning(instance, text, "set its maxmemory-policy to noeviction")
    yield from _check_storage(instance, samples)


def check_shards(samples: Iterable[Samples]) -> Iterator[Finding]:
    """Yield a finding about shards that no operator owns; `samples` are those of all operators."""
    owned = {
        sample.labels["shard"]
        for each in samples
        for sample in each.get("gateway_shard_owned", ())
        if sample.value
    }
    if len(owned) < SHARDS:
        text = f"{SHARDS - len(owned)} of {SHARDS} shards have no operator: their tasks wait"
        yield error("operator", text, "look for operator pods that are not Ready")


def _check_counters(instance: str, samples: Samples, earlier: Samples) -> Iterator[Finding]:
    """Redis: unanswered round trips since the earlier look, and no answered ones."""

    def grown(name: str) -> float:
        return _sum(samples, name) - _sum(earlier, name)

    if grown("gateway_counters_unanswered_total") > 0:
        answered = grown("gateway_counters_round_trip_seconds_count") > 0
        make, text = (warning, "at times") if answered else (error, "at all")
        action = "look at the Redis pod, GATEWAY_REDIS_URL and the NetworkPolicy"
        yield make(instance, f"Redis does not answer {text}: paid calls are refused", action)


def _check_storage(instance: str, samples: Samples) -> Iterator[Finding]:
    size, quota = (_sum(samples, f"gateway_record_{name}_bytes") for name in ("size", "quota"))
    if quota and size > QUOTA_SHARE * quota:
        text = f"etcd uses {100 * size / quota:.0f} % of its quota"
        yield warning(instance, text, INTAKE["quota"])
    for name, bound, text, action in (
        (
            "gateway_tasks_overdue",
            0,
            "tasks that are unfinished after their deadline: {}",
            "see the findings about tasks, and the operator's log",
        ),
        (
            "gateway_journal_unstored_records",
            UNSTORED_RECORDS,
            "the object store takes no charges; calls whose charges are in memory only: {}",
            "look at the object store: its space, address and credentials",
        ),
        (
            "gateway_usage_fold_waiting",
            FOLD_WAITING,
            "ended tasks whose charges wait for the usage: {}",
            "look at the operator's log and the Kubernetes API's latency",
        ),
        (
            "gateway_journals_damaged",
            0,
            "processes whose usage journals have an unreadable object: {}",
            "docs/alerts.md, GatewayJournalDamaged",
        ),
        (
            "gateway_files_broken",
            0,
            "files that lack bytes in the object store: {}",
            "restore the store's backup; `kubectl get gatewayfiles` names them",
        ),
    ):
        value = _sum(samples, name)
        if value > bound:
            yield error(instance, text.format(f"{value:.0f}"), action)
    failures = _sum(samples, "gateway_unexpected_failures_total")
    if failures:
        text = f"{count(int(failures), 'unexpected failure')} since its start"
        yield note(instance, text, "its log has the tracebacks")


def _sum(samples: Samples, name: str) -> float:
    return sum(sample.value for sample in samples.get(name, ()))
