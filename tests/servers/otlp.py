"""A receiver of traces: OTLP over HTTP as OpenTelemetry specifies it, spans kept in memory."""

import gzip
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)


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


@dataclass
class Receiver:
    """`with Receiver() as receiver`: serves on loopback, at a port of its own."""

    spans: list[Span] = field(default_factory=list)
    raw: list[bytes] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)

    def __enter__(self) -> Self:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                receiver.take(self.path, dict(self.headers), body)
                answer = ExportTraceServiceResponse().SerializeToString()
                self.send_response(200)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: Any) -> None:
                """Says nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def url(self) -> str:
        """What `OTEL_EXPORTER_OTLP_ENDPOINT` is to be."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def take(self, path: str, headers: dict[str, str], body: bytes) -> None:
        """Takes in one request."""
        assert path == "/v1/traces"
        request = ExportTraceServiceRequest.FromString(body)
        self.raw.append(body)
        self.headers.append(headers)
        for group in request.resource_spans:
            service = _read_facts(group.resource.attributes)["service.name"]
            for scope in group.scope_spans:
                self.spans += [_read_span(service, span) for span in scope.spans]

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
