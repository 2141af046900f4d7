"""Whether this process traces, by OpenTelemetry's own variables; used by the compose modules.

Nothing of OpenTelemetry's SDK is imported unless it does.
"""

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from gateway_core.ports.tracing import NO_TRACER, Tracer

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


def is_wanted(environment: Mapping[str, str]) -> bool:
    """Whether the environment names a receiver of traces, and does not switch them off."""
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    if environment.get("OTEL_TRACES_EXPORTER", "otlp").strip().lower() != "otlp":
        return False
    return any(environment.get(name, "").strip() for name in _ENDPOINTS)


@asynccontextmanager
async def open_tracer(component: str) -> AsyncIterator[Tracer]:
    """The tracer of the process `component` (`api`, `operator`); what it has is sent at the end."""
    if not is_wanted(os.environ):
        yield NO_TRACER
        return
    from gateway_core.adapters.tracing.otlp import OtlpTracer

    tracer = OtlpTracer(component)
    try:
        yield tracer
    finally:
        await tracer.close()
