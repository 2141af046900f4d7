"""How long things are kept; what the settings say, for whoever removes something."""

from dataclasses import dataclass

DAY_SECONDS = 86_400.0
RESULT_DAYS = 30
"""How long the result of a task can be read (contract §2.3), and an ended batch."""
MOST_ENDED = 1000


@dataclass(frozen=True, slots=True)
class Rules:
    """Times in seconds.

    `finished` is how long a finished task's object is kept after it was archived, `most` how many
    are kept at all; `least` how long each is kept whatever the other two say, so that a create that
    was looking for it finds either it or its archive (contract §2.2). `ended` is how many ended
    Uploads, and as many ended batches, are kept of one account (§12.1a).
    """

    finished: float = 3600.0
    most: int = 20_000
    least: float = 600.0
    ended: int = MOST_ENDED
    batches: float = RESULT_DAYS * DAY_SECONDS
    results: float = (RESULT_DAYS + 1) * DAY_SECONDS
    usage_days: int = 8
