"""How many trials of each fault are run: 4 % by default, all of them with FAULT_SHARE=100."""

import math
import os

import pytest

WHOLE = 100

_given = os.environ.get("FAULT_SHARE", "4")
if not _given.isdigit() or not 1 <= int(_given) <= WHOLE:
    raise ValueError(f"FAULT_SHARE is the percentage to run, 1 to {WHOLE}, not {_given!r}")

SHARE = int(_given)
"""Per cent."""

IS_WHOLE = SHARE == WHOLE
"""Whether everything is run (`make test-long`)."""


long_run = pytest.mark.skipif(not IS_WHOLE, reason="part of make test-long")
"""Mark of tests that only `make test-long` runs; docs/reliability.in.md names them."""


def share(total: int) -> int:
    """The part of `total` trials to run; at least one."""
    return max(1, math.ceil(total * SHARE / WHOLE))
