"""kopf, without the package `kubernetes`: for whoever of the operator uses it.

kopf loads that package wherever it is installed, for nothing but to recognise its objects, which
nobody here hands it: a quarter of the CPU of the operator's imports, and 40 MB (decision 7).
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

_NAME = "kubernetes"


@contextmanager
def _not_installed(name: str) -> Iterator[None]:
    """Imports of a package fail meanwhile, unless somebody has it already."""
    if name in sys.modules:
        yield
        return
    sys.modules[name] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[name]


with _not_installed(_NAME):
    import kopf

__all__ = ["kopf"]
