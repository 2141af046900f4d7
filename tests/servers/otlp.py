"""A receiver of traces: OTLP over HTTP as OpenTelemetry specifies it, spans kept in memory."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from tests.servers.server import WebServer


@dataclass(frozen=True)
class Span:
    """A span as it was sent; ids are in hex, `parent` is empty for a top."""

    service: str
    name: str
    trace: str
    id: str
    parent: str
    facts: dict[str, Any]
    events: tuple[str, ...]
    links: tuple[str, ...]
    failed: bool


class Receiver(WebServer):
    """The receiver. Its `url` is what `OTEL_EXPORTER_OTLP_ENDPOINT` is to be."""

    def __init__(self) -> None:
        super().__init__()
        self.spans: list[Span] = []
        self.raw: list[bytes] = []
        self.headers: list[Mapping[str, str]] = []

    def build(self) -> web.Application:
        app = web.Application(client_max_size=2**26)
        app.router.add_post("/v1/traces", self._take)
        return app

    async def _take(self, request: web.Request) -> web.Response:
        body = await request.read()
        self.raw.append(body)
        self.headers.append(request.headers)
        for group in ExportTraceServiceRequest.FromString(body).resource_spans:
            service = _read_facts(group.resource.attributes)["service.name"]
            for scope in group.scope_spans:
                self.spans += [_read_span(service, span) for span in scope.spans]
        answer = ExportTraceServiceResponse().SerializeToString()
        return web.Response(body=answer, content_type="application/x-protobuf")

    def of_trace(self, trace: str) -> list[Span]:
        """The spans of a trace that have come so far."""
        return [span for span in self.spans if span.trace == trace]


def _read_span(service: str, span: Any) -> Span:
    return Span(
        service=service,
        name=span.name,
        trace=span.trace_id.hex(),
        id=span.span_id.hex(),
        parent=span.parent_span_id.hex(),
        facts=_read_facts(span.attributes),
        events=tuple(event.name for event in span.events),
        links=tuple(link.trace_id.hex() for link in span.links),
        failed=span.status.code == 2,
    )


def _read_facts(attributes: Any) -> dict[str, Any]:
    return {
        entry.key: getattr(entry.value, entry.value.WhichOneof("value")) for entry in attributes
    }
