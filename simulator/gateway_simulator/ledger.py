"""All jobs of the provider, by id, idempotency key, client reference and output file.

Used by `provider` and `control`. Every change goes to the journal before it shows in memory, so
that no caller is told of something that a restart would lose.

The journal has one JSON document a line, in the order of events. Each line is one unbuffered write:
it survives `kill -9` of the process at any point, though not a power cut.
"""

import secrets
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import orjson

from gateway_simulator.jobs import Job, JobRequest, Plan


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


class Ledger:
    """The jobs, loaded from the journal where there is one. `clock` gives epoch seconds."""

    def __init__(self, clock: Callable[[], float], journal: Journal | None = None) -> None:
        self._clock = clock
        self._journal = journal
        self._by_id: dict[str, Job] = {}
        self._by_key: dict[str, Job] = {}
        self._by_reference: dict[str, list[Job]] = {}
        self._by_file: dict[str, Job] = {}
        if journal is not None:
            self._load(journal)

    def __len__(self) -> int:
        """Return the number of jobs."""
        return len(self._by_id)

    def __iter__(self) -> Iterator[Job]:
        """Yield the jobs, oldest first."""
        return iter(self._by_id.values())

    def __reversed__(self) -> Iterator[Job]:
        """Yield the jobs, newest first."""
        return reversed(self._by_id.values())

    def get(self, job_id: str) -> Job | None:
        """Return a job by its id."""
        return self._by_id.get(job_id)

    def get_by_key(self, key: str) -> Job | None:
        """Return the first job made with an idempotency key."""
        return self._by_key.get(key)

    def get_by_file(self, name: str) -> Job | None:
        """Return the job that an output file belongs to."""
        return self._by_file.get(name)

    def list_by_reference(self, reference: str) -> list[Job]:
        """Return the jobs of a client reference, oldest first."""
        return list(self._by_reference.get(reference, ()))

    def add(self, request: JobRequest, key: str | None, plan: Plan) -> Job:
        """Record a new job."""
        job = Job(
            id=f"job_{secrets.token_hex(12)}",
            key=key,
            request=request,
            plan=plan,
            created_at=self._clock(),
            file_name=f"{secrets.token_urlsafe(18)}.mp4",
        )
        self._write(
            {
                "event": "job",
                "id": job.id,
                "key": key,
                "request": request.model_dump(),
                "plan": asdict(plan),
                "created_at": job.created_at,
                "file_name": job.file_name,
            }
        )
        self._index(job)
        return job

    def cancel(self, job: Job) -> bool:
        """Cancel a job; return False, changing nothing, when it has ended."""
        now = self._clock()
        if job.state(now).ended:
            return False
        self._write({"event": "cancel", "id": job.id, "at": now})
        job.cancelled_at = now
        return True

    def lose(self, job: Job) -> None:
        """Make a job unknown to polls and look-ups from now on."""
        if not job.lost:
            self._write({"event": "lose", "id": job.id})
            job.lost = True

    def close(self) -> None:
        """Close the journal."""
        if self._journal is not None:
            self._journal.close()

    def _write(self, event: dict[str, Any]) -> None:
        if self._journal is not None:
            self._journal.append(event)

    def _index(self, job: Job) -> None:
        self._by_id[job.id] = job
        self._by_file[job.file_name] = job
        if job.key is not None:
            self._by_key.setdefault(job.key, job)
        if job.request.client_reference is not None:
            self._by_reference.setdefault(job.request.client_reference, []).append(job)

    def _load(self, journal: Journal) -> None:
        for number, event in enumerate(journal.read(), start=1):
            try:
                self._replay(event)
            except (KeyError, TypeError, ValueError) as error:
                raise ValueError(f"line {number} of the journal is no event of ours") from error

    def _replay(self, event: dict[str, Any]) -> None:
        kind = event.pop("event")
        if kind == "job":
            request = JobRequest.model_validate(event.pop("request"))
            self._index(Job(request=request, plan=Plan(**event.pop("plan")), **event))
        elif kind == "cancel":
            self._by_id[event["id"]].cancelled_at = event["at"]
        elif kind == "lose":
            self._by_id[event["id"]].lost = True
        else:
            raise ValueError(kind)
