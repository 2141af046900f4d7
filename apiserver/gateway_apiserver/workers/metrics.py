"""The metrics of a parent and its workers in one exposition, each worker's with the label `worker`.

A sum over workers would be wrong for `rate()`: it falls when one of them restarts, which Prometheus
takes for the start of a counter at zero, and so counts all that the other workers had counted.
"""

from collections.abc import Iterable, Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

LABEL = "worker"


class _Merged(Collector):
    def __init__(self, own: bytes, workers: Mapping[int, bytes]) -> None:
        self._expositions = [(dict[str, str](), own)]
        self._expositions += [({LABEL: str(n)}, text) for n, text in workers.items()]

    def collect(self) -> Iterable[Metric]:
        families: dict[str, Metric] = {}
        for label, text in self._expositions:
            for found in text_string_to_metric_families(text.decode()):
                new = Metric(found.name, found.documentation, found.type)
                family = families.setdefault(found.name, new)
                for sample in found.samples:
                    family.add_sample(sample.name, {**label, **sample.labels}, sample.value)
        return families.values()

    def describe(self) -> Iterable[Metric]:
        # without it the registry would collect at the registration as well
        return ()


def merge_expositions(own: bytes, workers: Mapping[int, bytes]) -> bytes:
    """The exposition of the parent and those of workers by their numbers, as one."""
    registry = CollectorRegistry()
    registry.register(_Merged(own, workers))
    return generate_latest(registry)
