"""I5: other requests and the operator act in the middle of a request, at each of its steps.

Every request to an Upload meets every outcome, written and settled by others between two of its own
calls to the record, the store and the storage ledger.
"""

import hashlib
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from gateway_core.api.ids import id_to_name
from tests.unit.apiserver.gateway import Answer
from tests.unit.apiserver.uploadbench import UploadBench

HOUR = 3600
FIRST, SECOND = b"abc", b"de"
MD5 = hashlib.md5(FIRST + SECOND, usedforsecurity=False).hexdigest()
REQUESTS = ("complete", "complete with md5", "cancel", "part")
RIVALS = ("complete, file deleted", "other", "cancel", "expire", "settle")
WISHES = {"complete": "Completed", "other": "Other", "cancel": "Cancelled", "expire": "Expired"}
MOST_STEPS = 60
"""More than any request has."""


class Interrupted:
    """One pending Upload with two parts, and the requests that can be made to it."""

    def __init__(self, bench: UploadBench) -> None:
        self._bench = bench
        self.id = ""
        self._parts: list[str] = []
        self.is_file_deleted = False
        self.rival: Answer | None = None

    @property
    def name(self) -> str:
        return id_to_name(self.id)

    async def prepare(self) -> None:
        uploader = self._bench.uploader
        self.id = await uploader.open(len(FIRST + SECOND))
        self._parts = [await uploader.add(self.id, piece) for piece in (FIRST, SECOND)]

    async def ask(self, request: str) -> Answer:
        uploader, parts = self._bench.uploader, self._parts
        calls: dict[str, Callable[[], Awaitable[Answer]]] = {
            "complete": lambda: uploader.complete(self.id, *parts),
            "complete with md5": lambda: uploader.complete(self.id, *parts, md5=MD5),
            "other": lambda: uploader.complete(self.id, *reversed(parts)),
            "cancel": lambda: uploader.cancel(self.id),
            "part": lambda: uploader.send(self.id, b"late"),
        }
        return await calls[request]()

    async def visit(self, rival: str) -> None:
        """The rival acts, and the operator settles what has come of it."""
        bench = self._bench
        if rival == "expire":
            bench.passed += HOUR + 1
        elif rival != "settle":
            self.rival = await self.ask(rival.partition(",")[0])
        await bench.settle(self.name)
        file = (self.spec().get("completion") or {}).get("fileName")
        if rival.endswith("file deleted") and file is not None:
            self.is_file_deleted = (await bench.delete_file(file)).status == 200
            await bench.remove_file(file)

    def spec(self) -> dict[str, Any]:
        found = self._bench.kube.find("gatewayuploads", self.name)
        assert found is not None
        spec: dict[str, Any] = found["spec"]
        return spec

    def read_outcome(self) -> str:
        """The outcome of the record; `Other` where the parts are in the other order."""
        spec = self.spec()
        outcome = str(spec.get("outcome"))
        if outcome != "Completed":
            return outcome
        listed = [part["id"] for part in spec["completion"]["parts"]]
        return outcome if listed == self._parts else "Other"

    def check(self, request: str, answer: Answer | None) -> None:
        """Whether the answer is what the outcome of the record calls for."""
        if answer is None:
            return
        outcome, wish = self.read_outcome(), WISHES[request.partition(" ")[0].strip(",")]
        if wish == outcome:
            assert answer.status == 200, (request, outcome, answer.body)
            return
        assert answer.status == 409, (request, outcome, answer.status, answer.body)
        assert answer.json["error"]["code"] == "upload_state_conflict"
        assert answer.headers["x-should-retry"] == "false"


@pytest.mark.parametrize("rival", RIVALS)
@pytest.mark.parametrize("request_", REQUESTS)
async def test_interrupted_request_gets_response_of_the_outcome(request_: str, rival: str) -> None:
    bench = UploadBench()
    outcomes = set[str]()
    for after in range(MOST_STEPS):
        trial = Interrupted(bench)
        await trial.prepare()
        bench.fate.visitor, bench.fate.visit_after = partial(trial.visit, rival), after
        answer = await trial.ask(request_)
        was_visited, bench.fate.visitor = bench.fate.visitor is None, None
        if not was_visited:
            break
        outcome = trial.read_outcome()
        outcomes.add(outcome)
        if request_ == "part":
            # its last look at the record decides, which may come before the visit
            assert answer.status in (200, 409), answer.body
        else:
            trial.check(request_, answer)
        if rival not in ("expire", "settle"):
            trial.check(rival, trial.rival)
        await bench.settle(trial.name)
        for repeated in ("complete", "complete with md5", "other", "cancel"):
            if outcome == "Pending":
                continue
            again = await trial.ask(repeated)
            trial.check(repeated, again)
            for known, first in ((request_, answer), (rival, trial.rival)):
                same = known.partition(",")[0].startswith(repeated.partition(" ")[0])
                if first is not None and same and again.status == 200:
                    assert first.body == again.body, "I5: a repetition answers as the first"
        assert trial.read_outcome() == outcome, "I5: an outcome has changed"
        live = [
            file
            for file in bench.kube.list_objects("gatewayfiles")
            if file["spec"]["request"].get("uploadName") == trial.name
            and not file["metadata"].get("deletionTimestamp")
        ]
        is_kept = outcome in ("Completed", "Other") and not trial.is_file_deleted
        assert len(live) == int(is_kept), "I5: one File, and none that was deleted comes back"
    else:
        pytest.fail(f"a request has more than {MOST_STEPS} steps")
    assert after > 5, "the visit was never in the middle"
    if rival == "settle":
        assert outcomes <= {"Pending", WISHES.get(request_.partition(" ")[0], "Pending")}
    else:
        assert WISHES[rival.partition(",")[0]] in outcomes
