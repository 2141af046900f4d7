"""`python -m gateway_simulator`: the simulated provider as a process.

It exits with 2, saying why, when its settings or its state directory are unusable, and with 1
when its address is.
"""

import sys

from pydantic import ValidationError

from gateway_simulator.app import serve
from gateway_simulator.settings import Settings


def main() -> int:
    """Serve until a signal; return the exit status."""
    try:
        # The environment gives the required token, which pyright cannot know.
        settings = Settings()  # pyright: ignore[reportCallIssue]
        return 0 if serve(settings) else 1
    except ValidationError as error:
        for problem in error.errors(include_input=False):
            name = str(problem["loc"][0]).upper()
            name = name if name.startswith("GATEWAY_") else f"GATEWAY_SIMULATOR_{name}"
            print(f"{name}: {problem['msg']}", file=sys.stderr)
    except (OSError, ValueError) as error:
        print(f"GATEWAY_SIMULATOR_STATE_DIR: {error}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
