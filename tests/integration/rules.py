"""Rules of the simulated provider that several tests give to `simulate`."""

from typing import Any

UNSEEN: dict[str, Any] = {
    "behaviour": "status",
    "status": 503,
    "match": {"on": "poll", "prompt_contains": "Unseen"},
}
"""The end of such a job is not heard of until the rule is gone: `await simulate()`."""
