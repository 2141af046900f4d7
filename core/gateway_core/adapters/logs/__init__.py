"""Logs: structured lines on standard error, of the gateway and of its libraries alike.

Called once by each process before anything else. Nothing that is logged holds a credential: the
processes log names, ids and error texts that their adapters have cleaned.
"""

import logging
import sys
from typing import Any, Literal

import structlog

from gateway_core.adapters.logs.repeats import RepeatHandler

_QUIET = ("kopf", "aiohttp", "asyncio", "urllib3", "httpx")


def configure_logging(level: str, form: Literal["console", "json"]) -> None:
    """Has everything at `level` (debug, info, warning, error) and above printed."""
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
