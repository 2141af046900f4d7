"""`python -m gateway_operator`: reads the settings, runs the operator until SIGTERM or SIGINT."""

import asyncio
import signal
import sys

import structlog
from pydantic import ValidationError

from gateway_operator.compose import configure_logging, run_operator
from gateway_operator.settings import Settings

_log = structlog.get_logger(__name__)


async def _main(settings: Settings) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def claim_signals() -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)

    claim_signals()
    await run_operator(settings, stop, claim_signals)


def main() -> int:
    """Exit code 2 for settings that are missing or wrong, 1 if the operator failed."""
    try:
        settings = Settings()  # pyright: ignore[reportCallIssue]
    except ValidationError as error:
        for problem in error.errors():
            # what concerns several settings has no place and names them itself
            name = "_".join(["GATEWAY", *map(str, problem["loc"])]).upper()
            print(
                f"{name}: {problem['msg']}" if problem["loc"] else problem["msg"], file=sys.stderr
            )
        return 2
    configure_logging(settings.log_level, settings.log_format)
    try:
        asyncio.run(_main(settings))
    except Exception:
        _log.exception("operator ended")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
