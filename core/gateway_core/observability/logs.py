"""Structured logs on standard error, of the gateway and of its libraries.

No line has a credential: the processes log names, ids and redacted error texts.
"""

import asyncio
import logging
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import lru_cache
from select import PIPE_BUF
from typing import Any, Literal

import orjson
import structlog

from gateway_core.observability.repeats import RepeatHandler

_QUIET = ("kopf", "aiohttp", "asyncio", "urllib3", "httpx")


def configure_logging(level: str, form: Literal["console", "json"]) -> None:
    """Print lines of `level` (debug, info, warning, error) and above; called first."""
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    last: Any = (
        structlog.processors.JSONRenderer()
        if form == "json"
        else structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(),
            # a traceback with local variables would print credentials
            exception_formatter=structlog.dev.plain_traceback,
        )
    )
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.PositionalArgumentsFormatter(),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    finish: list[Any] = [structlog.stdlib.ProcessorFormatter.remove_processors_meta]
    if form == "json":
        finish.append(structlog.processors.format_exc_info)
    handler = RepeatHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(foreign_pre_chain=shared, processors=[*finish, last])
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in _QUIET:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))


FLUSH_SECONDS = 0.1
MOST_BYTES = 64 * 1024
_STANDARD_ERROR = 2


class LineWriter:
    """Buffered writer of info lines to standard error; for one event loop.

    An access-log line through structlog costs ten times as much CPU.
    """

    def __init__(self, form: Literal["console", "json"], logger: str, fd: int = _STANDARD_ERROR):
        self._render = _render_json if form == "json" else _render_text
        self._logger = logger
        self._fd = fd
        self._lines: list[bytes] = []
        self._bytes = 0
        self._timer: asyncio.TimerHandle | None = None

    def write(self, event: str, facts: Mapping[str, Any]) -> None:
        """Add one line to the buffer."""
        line = self._render(event, self._logger, facts)
        self._lines.append(line)
        self._bytes += len(line)
        if self._bytes >= MOST_BYTES:
            self.flush()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(FLUSH_SECONDS, self.flush)

    def flush(self) -> None:
        """Write the buffer. Lines that cannot be written are lost."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        lines, self._lines, self._bytes = self._lines, [], 0
        with suppress(OSError):
            for piece in _join(lines):
                rest = memoryview(piece)
                while rest:
                    rest = rest[os.write(self._fd, rest) :]


def _join(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Whole lines together, at most as much as a pipe takes at once (but for a longer line).

    More would be mixed with the lines of another worker that has the same standard error.
    """
    piece = bytearray()
    for line in lines:
        if piece and len(piece) + len(line) > PIPE_BUF:
            yield bytes(piece)
            piece.clear()
        piece += line
    yield bytes(piece)


@lru_cache(maxsize=2)
def _format_second(second: int) -> str:
    """Return the date and time of a second, which many lines share."""
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def _read_time() -> str:
    second, nanos = divmod(time.time_ns(), 1_000_000_000)
    return f"{_format_second(second)}.{nanos // 1000:06d}Z"


def _render_json(event: str, logger: str, facts: Mapping[str, Any]) -> bytes:
    line = {**facts, "event": event, "level": "info", "logger": logger, "timestamp": _read_time()}
    return orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE)


def _render_text(event: str, logger: str, facts: Mapping[str, Any]) -> bytes:
    # a list, which is joined faster than a generator
    words = " ".join([f"{name}={value}" for name, value in facts.items()])
    return f"{_read_time()} [info     ] {event} [{logger}] {words}\n".encode()
