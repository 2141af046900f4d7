"""OpenTelemetry's SDK with an OTLP exporter over HTTP, on a thread of the SDK's.

The SDK reads its own variables: endpoint, headers, certificates, sampler, batches, resource
attributes (`OTEL_*`). An unreachable receiver costs spans and nothing else.
"""

import os

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator

from gateway_core.api.resource import RELEASE


class TraceIds(RandomIdGenerator):
    """Random ids, except for a `trace_id` set for the next span."""

    trace_id: str | None = None

    def generate_trace_id(self) -> int:
        """Return the id of the next trace."""
        return super().generate_trace_id() if self.trace_id is None else int(self.trace_id, 16)


class Provider(TracerProvider):
    """Tracer provider of one process."""

    def __init__(self, component: str) -> None:
        self.ids = TraceIds()
        super().__init__(resource=Resource.create(_describe(component)), id_generator=self.ids)
        self.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))


def _describe(component: str) -> dict[str, str]:
    """Resource attributes that the environment does not set itself."""
    own = {SERVICE_VERSION: RELEASE}
    named = f"{SERVICE_NAME}=" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    if not (named or os.environ.get("OTEL_SERVICE_NAME")):
        own[SERVICE_NAME] = f"model-gateway-{component}"
    return own
