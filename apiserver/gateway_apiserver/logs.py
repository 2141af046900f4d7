"""Logging of a process: structlog for our own lines, and the libraries' lines in the same form.

Configured once by `__main__`. Nothing secret is passed to a logger, and paths come without query.
"""

import logging
import sys
from typing import Literal

import orjson
import structlog


def configure_logs(level: str, form: Literal["console", "json"]) -> None:
    """Has everything from `level` on written to standard error, one line an event."""
    number = getattr(logging, level.upper())
    shared: list[structlog.typing.Processor] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    if form == "json":
        ours: structlog.typing.Processor = structlog.processors.JSONRenderer(orjson.dumps)
        theirs: structlog.typing.Processor = structlog.processors.JSONRenderer()
        factory: object = structlog.BytesLoggerFactory(sys.stderr.buffer)
    else:
        ours = theirs = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
        factory = structlog.WriteLoggerFactory(sys.stderr)
    structlog.configure(
        processors=[*shared, ours],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=factory,  # type: ignore[arg-type]
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, theirs],
            foreign_pre_chain=[structlog.stdlib.add_logger_name, *shared],
        )
    )
    logging.basicConfig(handlers=[handler], level=max(number, logging.INFO), force=True)
