"""The append-only file that lets jobs outlive the process; used by `ledger`.

One JSON document a line, in the order of events. Each line is one unbuffered write: it survives
`kill -9` of the process at any point, though not a power cut, which the simulator need not.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson


class Journal:
    """The file `jobs.jsonl` in a directory, which is created when it is absent."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._path = directory / "jobs.jsonl"
        self._drop_torn_line()
        self._file = self._path.open("ab", buffering=0)

    def append(self, event: dict[str, Any]) -> None:
        """Write one event; it is in the file when this returns. Raise OSError when it cannot."""
        self._file.write(orjson.dumps(event) + b"\n")

    def read(self) -> Iterator[dict[str, Any]]:
        """Yield all events, oldest first; raise ValueError for a line that is not JSON."""
        with self._path.open("rb") as lines:
            for line in lines:
                yield orjson.loads(line)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _drop_torn_line(self) -> None:
        # A process killed within a write leaves a line without its end. No caller was told of
        # that event, so leaving it out loses nothing that was acknowledged.
        if self._path.exists():
            content = self._path.read_bytes()
            if content and not content.endswith(b"\n"):
                self._path.write_bytes(content[: content.rfind(b"\n") + 1])
