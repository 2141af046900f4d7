"""Lua scripts in `lua/`, each one atomic step on an account's counters; run by `RedisAdapter`.

Each takes the server's `run_id` as its first argument and begins with the names of its keys:
scripts on money with `account.lua` (and `spent.lua` for windows), on stored bytes with
`storage/pool.lua`, on parts with `parts/parts.lua`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files

Argument = str | int | bytes
Script = bytes
"""The source of a script, which an adapter registers with its client."""


@dataclass(frozen=True, slots=True)
class ScriptCall:
    """One run of a script; the `run_id` of the server comes before `arguments`."""

    script: Script
    keys: Sequence[str]
    arguments: Sequence[Argument] = ()


def load_script(*names: str) -> Script:
    """Return the script made of these files of `lua/`."""
    folder = files("gateway_core.redis").joinpath("lua")
    return b"\n".join(folder.joinpath(f"{name}.lua").read_bytes() for name in names)


def _load(*names: str) -> Script:
    return load_script("clock", "account", *names)


ADMIT = _load("rate", "spent", "admit")
COUNT = _load("rate", "count")
HOLD = _load("hold")
SETTLE = _load("spent", "charge", "settle")
LEASE = _load("rate", "spent", "charge", "lease")
SPENDING = _load("spending")
BUDGETS = _load("spent", "budgets")
HOLDS = _load("holds")
KEEP = _load("keep")
MARK_STALE = _load("mark_stale")
BEGIN_REBUILD = _load("begin_rebuild")
FINISH_REBUILD = _load("finish_rebuild")
ABANDON_REBUILD = _load("abandon_rebuild")

SCRIPTS = (
    ADMIT,
    COUNT,
    HOLD,
    SETTLE,
    LEASE,
    SPENDING,
    BUDGETS,
    HOLDS,
    KEEP,
    MARK_STALE,
    BEGIN_REBUILD,
    FINISH_REBUILD,
    ABANDON_REBUILD,
)
"""All scripts on money."""
