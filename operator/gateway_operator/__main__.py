"""`python -m gateway_operator`: `kopf run` with the gateway's settings, until SIGTERM or SIGINT."""

import sys

import kopf
import structlog
from pydantic import ValidationError

import gateway_operator.handlers  # noqa: F401 - registers kopf's handlers
from gateway_core.observability.logs import configure_logging
from gateway_core.settings import list_problems
from gateway_operator.settings import Settings

_log = structlog.get_logger(__name__)


def main() -> int:
    """Exit code 2 for settings that are missing or wrong, 1 if the operator failed."""
    try:
        settings = Settings()  # pyright: ignore[reportCallIssue]
    except ValidationError as error:
        print(*list_problems(error), sep="\n", file=sys.stderr)
        return 2
    configure_logging(settings.log_level, settings.log_format)
    try:
        kopf.run(
            standalone=True,
            namespaces=[settings.namespace],
            liveness_endpoint=settings.liveness_endpoint,
        )
    except Exception:
        _log.exception("operator ended")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
