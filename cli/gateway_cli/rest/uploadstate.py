"""What is remembered of an upload that is under way, so that the same command goes on with it.

One small file for each source, account key and address, under `$XDG_STATE_HOME/gatewayctl/uploads`
(`~/.local/state` otherwise). It holds no secret.
"""

import hashlib
import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

SPARE_SECONDS = 60.0
"""An Upload that ends sooner than this is not gone on with."""
KEPT_SECONDS = 31 * 86_400
"""How long it is known here what was brought up once: longer than a Batch is there."""


@dataclass(slots=True)
class UploadState:
    """One upload. `parts` has the ids of those that are there, by their place from 0 on.

    `size`, `changed_ns` and `md5` say what the source was; `expires_at` is in epoch seconds, 0 as
    long as the Upload's creation is not known to have succeeded. `file_id` is kept of what is to be
    brought up once.
    """

    base_url: str
    key_id: str
    source: str
    purpose: str
    name: str
    size: int
    changed_ns: int
    md5: str
    part_size: int
    idempotency_key: str
    expires_after: int | None = None
    upload_id: str = ""
    expires_at: float = 0
    parts: dict[int, str] = field(default_factory=dict)
    once: bool = False
    file_id: str = ""

    def fits(self, other: "UploadState") -> bool:
        """Whether this is of the same bytes for the same end as `other`, and still in time."""
        ours, theirs = asdict(self), asdict(other)
        own = ("idempotency_key", "upload_id", "expires_at", "parts", "file_id")
        in_time = (
            bool(self.file_id)
            or not self.upload_id
            or time.time() < self.expires_at - SPARE_SECONDS
        )
        return in_time and all(ours[name] == theirs[name] for name in ours if name not in own)


def find_state_folder() -> Path:
    """Where the states are."""
    home = os.environ.get("XDG_STATE_HOME")
    base = Path(home) if home else Path.home() / ".local" / "state"
    return base / "gatewayctl" / "uploads"


class StateFile:
    """The state of one source; `read` gives None where there is none that can be read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def of(
        cls, base_url: str, key_id: str, source: Path, purpose: str, once: str | None = None
    ) -> "StateFile":
        """The file for a source, a key and an address; `once` is what it is brought up for."""
        own = () if once is None else (once,)
        words = "\n".join((base_url, key_id, str(source), purpose, *own))
        return cls(find_state_folder() / f"{hashlib.sha256(words.encode()).hexdigest()[:32]}.json")

    def read(self) -> UploadState | None:
        """The state that was kept."""
        try:
            found: dict[str, Any] = json.loads(self.path.read_text())
            parts = {int(place): str(part) for place, part in found.pop("parts").items()}
            return UploadState(**found, parts=parts)
        except (OSError, ValueError, TypeError, AttributeError, KeyError):
            return None

    def write(self, state: UploadState) -> None:
        """Keeps a state, whole or not at all. OSError."""
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        partial = self.path.with_suffix(f".{os.getpid()}")
        partial.write_text(json.dumps(asdict(state)))
        partial.replace(self.path)

    def finish(self, state: UploadState) -> None:
        """Keeps what an upload came to, and forgets what others came to long ago. OSError."""
        self.write(state)
        for file, other in _read_all():
            age = time.time() - file.path.stat().st_mtime
            if other.file_id and age > KEPT_SECONDS:
                file.remove()

    def remove(self) -> None:
        """Forgets it."""
        self.path.unlink(missing_ok=True)


def list_states() -> Iterator[tuple[StateFile, UploadState]]:
    """All uploads that were not brought to an end here."""
    return (found for found in _read_all() if not found[1].file_id)


def _read_all() -> Iterator[tuple[StateFile, UploadState]]:
    for path in sorted(find_state_folder().glob("*.json")):
        file = StateFile(path)
        state = file.read()
        if state is not None:
            yield file, state
