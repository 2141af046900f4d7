"""`/v1/uploads` and the operator in any order, killed anywhere, against a model (§4).

`test_upload_interruptions.py` has other requests at each step of a request.
"""

import asyncio
import hashlib
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from gateway_core.api.ids import id_to_name
from gateway_core.files.quota import rebuild_pool
from gateway_core.redis.link import CountersStale
from tests.fakes.storage import REBUILD_SECONDS
from tests.shares import IS_WHOLE
from tests.unit.apiserver.gateway import Answer
from tests.unit.apiserver.uploadbench import Killed, UploadBench

FILES, UPLOADS = "gatewayfiles", "gatewayuploads"
HOUR = 3600
KILLS = st.one_of(st.none(), st.integers(0, 24))
PICKS = st.integers(0, 5)
ENDINGS = st.sampled_from(["complete", "other", "cancel", "part", "operator"])


@dataclass
class Known:
    """What the model knows of an Upload. `unsure` while a killed process may have left work."""

    id: str
    size: int
    created: int
    parts: list[tuple[str, bytes]] = field(default_factory=list)
    outcome: str = "Pending"
    listed: tuple[str, ...] = ()
    told: bytes | None = None
    deleted: bool = False
    unsure: bool = False

    @property
    def name(self) -> str:
        return id_to_name(self.id)

    def join(self, ids: tuple[str, ...]) -> bytes | None:
        """The bytes of these parts, None where one is unknown."""
        known = dict(self.parts)
        return b"".join(known[one] for one in ids) if set(ids) <= set(known) else None


class Uploading(RuleBasedStateMachine):
    """One API and one operator on one record; the client repeats what it got no answer to."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.bench = UploadBench()
        self.gateway, self.uploader = self.bench.gateway, self.bench.uploader
        self.kube, self.storage = self.bench.kube, self.bench.storage
        self.fate = self.bench.fate
        self.uploads: list[Known] = []

    def pick(self, number: int) -> Known:
        return self.uploads[number % len(self.uploads)]

    @initialize()
    def lose(self) -> None:
        self.storage.lose()
        self.gateway.parts.lose()

    @rule()
    def lose_figures(self) -> None:
        """Redis is emptied."""
        self.lose()

    @rule(size=st.integers(1, 6), kill=KILLS)
    def create(self, size: int, kill: int | None) -> None:
        key = f"key-{len(self.uploads)}"
        answer = self.attempt(lambda: self.uploader.create(size, key=key), kill)
        if answer is None:
            answer = self.run(self.uploader.create(size, key=key))
        assert answer.status == 200, answer.body
        assert answer.json["status"] == "pending"
        self.uploads.append(Known(answer.json["id"], size, answer.json["created_at"]))
        self.check(self.uploads[-1])

    @precondition(lambda self: self.uploads)
    @rule(number=PICKS, size=st.integers(1, 4), kill=KILLS)
    def add(self, number: int, size: int, kill: int | None) -> None:
        known = self.pick(number)
        data = f"{len(known.parts)}abc".encode()[:size]
        answer = self.attempt(lambda: self.uploader.send(known.id, data), kill)
        if answer is None:
            self.look_up(known)
            return
        self.expire(known)
        if known.outcome != "Pending":
            self.assert_conflict(answer)
        else:
            assert answer.status == 200, answer.body
            known.parts.append((answer.json["id"], data))
        self.check(known)

    @precondition(lambda self: self.uploads)
    @rule(
        number=PICKS,
        order=st.permutations(range(6)),
        count=st.integers(1, 6),
        fits=st.booleans(),
        flaw=st.sampled_from(["", "", "", "md5", "wrong md5", "twice", "strange"]),
        kill=KILLS,
    )
    def complete(
        self, number: int, order: list[int], count: int, fits: bool, flaw: str, kill: int | None
    ) -> None:
        known = self.pick(number)
        ids = self.choose(known, order, count, fits)
        if flaw == "twice" and ids:
            ids = (*ids, ids[0])
        if flaw == "strange" or not ids:
            ids = (*ids, "part_" + "a" * 26)
        content = known.join(ids)
        body = {}
        if "md5" in flaw:
            right = hashlib.md5(content or b"", usedforsecurity=False).hexdigest()
            body["md5"] = right if flaw == "md5" else "0" * 32
        answer = self.attempt(lambda: self.uploader.complete(known.id, *ids, **body), kill)
        if answer is None:
            self.look_up(known)
            return
        if len(set(ids)) == len(ids):
            # what names a part twice is refused before anybody looks at the Upload
            self.expire(known)
        code = self.find_flaw(known, ids, content, flaw)
        if code is not None:
            status, word = code
            assert (answer.status, answer.json["error"]["code"]) == (status, word), answer.body
        else:
            self.take_completed(known, ids, answer)
        self.check(known)

    @precondition(lambda self: self.uploads)
    @rule(number=PICKS, kill=KILLS)
    def cancel(self, number: int, kill: int | None) -> None:
        known = self.pick(number)
        answer = self.attempt(lambda: self.uploader.cancel(known.id), kill)
        if answer is None:
            self.look_up(known)
            return
        self.expire(known)
        if known.outcome in ("Pending", "Cancelled"):
            assert answer.status == 200, answer.body
            assert answer.json["status"] == "cancelled"
            known.outcome, known.unsure = "Cancelled", False
        else:
            self.assert_conflict(answer)
        self.check(known)

    @precondition(lambda self: self.uploads)
    @rule(
        number=PICKS,
        wanted=st.lists(ENDINGS, min_size=2, max_size=5),
        seed=st.integers(0, 2**16),
        kill=KILLS,
    )
    def race(self, number: int, wanted: list[str], seed: int, kill: int | None) -> None:
        """Requests and the operator at once, held up here and there; perhaps all are killed."""
        known = self.pick(number)
        calls = self.list_endings(known)

        async def run() -> list[Any]:
            made = (calls[one]() for one in wanted)
            return await asyncio.gather(*made, return_exceptions=True)

        self.fate.pauses = random.Random(seed)
        answers = self.attempt(run, kill)
        self.fate.pauses = None
        self.judge(known, wanted, answers)

    def list_endings(self, known: Known) -> dict[str, Callable[[], Awaitable[Any]]]:
        """The calls that `ENDINGS` names, for one Upload."""
        first, other = (
            self.choose(known, order, 6, True) for order in (range(6), range(5, -1, -1))
        )
        return {
            "complete": lambda: self.uploader.complete(known.id, *first),
            "other": lambda: self.uploader.complete(known.id, *other),
            "cancel": lambda: self.uploader.cancel(known.id),
            "part": lambda: self.uploader.send(known.id, b"late"),
            "operator": lambda: self.bench.settle(known.name),
        }

    def judge(self, known: Known, wanted: list[str], answers: list[Any] | None) -> None:
        """Checks the answers to calls that overlapped; None: all of them were killed."""
        self.look_up(known)
        if answers is None:
            return
        bodies = {one: set[bytes]() for one in wanted}
        for one, answer in zip(wanted, answers, strict=True):
            if one == "operator":
                assert answer is None, answer
            elif answer.status == 200:
                bodies[one].add(answer.body)
            elif known.outcome != "Pending":
                assert answer.status in (400, 409), answer.body
        told = set[bytes]().union(*(bodies.get(one, set()) for one in ("complete", "other")))
        assert len(told) <= 1, "two answers to completions"
        if told:
            assert known.outcome == "Completed"
            assert known.told in (None, *told)
            (known.told,) = told
        assert not bodies.get("cancel") or known.outcome == "Cancelled"
        self.run(self.bench.settle(known.name))
        # completions that name no part, or one twice, are refused before anybody looks at it
        self.expire(known)
        known.unsure = False
        self.check(known)

    @precondition(lambda self: self.uploads)
    @rule(number=PICKS, kill=KILLS)
    def settle(self, number: int, kill: int | None) -> None:
        """The operator looks at an Upload."""
        known = self.pick(number)
        if self.attempt(lambda: self.look(known), kill) is None:
            self.look_up(known)
            return
        self.expire(known)
        known.unsure = False
        self.check(known)

    @precondition(lambda self: any(one.told and not one.deleted for one in self.uploads))
    @rule(number=PICKS, kill=KILLS)
    def delete_file(self, number: int, kill: int | None) -> None:
        """A client deletes a File; the operator sees it out, and is perhaps killed over it."""
        there = [one for one in self.uploads if one.told and not one.deleted]
        known = there[number % len(there)]
        name = self.find(UPLOADS, known.name)["spec"]["completion"]["fileName"]
        gone = self.run(self.bench.delete_file(name))
        assert gone.status == 200, gone.body
        known.deleted = True
        if self.attempt(lambda: self.see_out(name), kill) is None:
            known.unsure = True
            return
        self.check(known)

    @rule(seconds=st.sampled_from([1, 1799, HOUR]))
    def wait(self, seconds: int) -> None:
        self.bench.passed += seconds

    def teardown(self) -> None:
        try:
            self.fate.left, self.fate.dead = None, False
            self.end()
        finally:
            self.runner.close()

    def end(self) -> None:
        """After an hour, and a pass of the operator, nothing is left but the files."""
        self.bench.passed += HOUR + 1
        for known in self.uploads:
            self.run(self.look(known))
            for file in self.list_files(known):
                self.run(self.see_out(file["metadata"]["name"]))
            self.look_up(known)
            known.unsure = False
            self.check(known)
            assert known.outcome != "Pending"
        self.run(self.bench.orphans.sweep())
        segments = {
            segment["key"]
            for file in self.kube.list_objects(FILES)
            for segment in file["spec"]["request"]["segments"]
        }
        assert set(self.gateway.store.contents) == segments, (
            "bytes without a file, or without bytes"
        )

    def run(self, work: Any) -> Any:
        return self.runner.run(work)

    def attempt(self, work: Callable[[], Awaitable[Any]], kill: int | None) -> Any:
        """What comes of it; None where the process was killed at its step number `kill`."""
        self.fate.left = kill

        async def run() -> Any:
            return await work()

        try:
            answer = self.runner.run(run())
        except Killed:
            answer = None
        killed = self.fate.dead
        self.fate.left, self.fate.dead = None, False
        if killed:
            # a rebuild that it had begun is given up
            self.storage.now += REBUILD_SECONDS
        return None if killed else answer

    async def look(self, known: Known) -> bool:
        await self.bench.settle(known.name)
        return True

    async def see_out(self, name: str) -> bool:
        await self.bench.remove_file(name)
        return True

    def find(self, plural: str, name: str) -> Any:
        found = self.kube.find(plural, name)
        assert found is not None
        return found

    def list_files(self, known: Known) -> list[Any]:
        return [
            file
            for file in self.kube.list_objects(FILES)
            if file["spec"]["request"].get("uploadName") == known.name
        ]

    def choose(self, known: Known, order: Any, count: int, fits: bool) -> tuple[str, ...]:
        """Parts in this order; `fits`: as long as they do not have more than the File."""
        chosen, size = list[str](), 0
        for place in order:
            if place < len(known.parts) and len(chosen) < count:
                part_id, data = known.parts[place]
                if not fits or size + len(data) <= known.size:
                    chosen.append(part_id)
                    size += len(data)
        return tuple(chosen)

    def find_flaw(
        self, known: Known, ids: tuple[str, ...], content: bytes | None, flaw: str
    ) -> tuple[int, str] | None:
        """The refusal that a completion is due, None where it is good."""
        if len(set(ids)) < len(ids):
            return 400, "duplicate_part"
        if known.outcome != "Pending":
            if known.outcome != "Completed" or ids != known.listed:
                return 409, "upload_state_conflict"
            # the bytes of a file that was deleted are gone, and nothing is held against them
            return (400, "md5_mismatch") if flaw == "wrong md5" and not known.deleted else None
        if content is None:
            return 404, "part_not_found"
        if len(content) != known.size:
            return 400, "upload_size_mismatch"
        return (400, "md5_mismatch") if flaw == "wrong md5" else None

    def take_completed(self, known: Known, ids: tuple[str, ...], answer: Answer) -> None:
        assert answer.status == 200, answer.body
        assert answer.json["status"] == "completed"
        assert known.told in (None, answer.body), "a repetition is answered with something else"
        known.outcome, known.listed, known.told = "Completed", ids, answer.body
        known.unsure = False

    def expire(self, known: Known) -> None:
        """Whoever comes to it after its hour finds that it is over."""
        if known.outcome == "Pending" and self.bench.tell_time() >= known.created + HOUR:
            known.outcome, known.unsure = "Expired", False

    def look_up(self, known: Known) -> None:
        """Takes over what those who gave no answer have decided; what was decided stands."""
        spec = self.find(UPLOADS, known.name)["spec"]
        outcome = spec["outcome"]
        assert known.outcome in ("Pending", outcome), "a decided outcome was changed"
        listed = tuple(part["id"] for part in (spec.get("completion") or {}).get("parts", ()))
        if known.outcome == "Completed":
            assert listed == known.listed
        assert outcome != "Expired" or self.bench.tell_time() >= known.created + HOUR
        known.outcome, known.listed, known.unsure = outcome, listed, True

    def assert_conflict(self, answer: Answer) -> None:
        assert answer.status == 409, answer.body
        assert answer.json["error"]["code"] == "upload_state_conflict"

    def check(self, known: Known) -> None:
        """One outcome, one File with the right bytes, and the account's storage exact."""
        spec = self.find(UPLOADS, known.name)["spec"]
        assert spec["outcome"] == known.outcome
        files = self.list_files(known)
        assert len(files) <= 1, "I5"
        assert known.outcome == "Completed" or not files
        live = [file for file in files if not file["metadata"].get("deletionTimestamp")]
        assert not (known.deleted and live), "a deleted file has come back"
        if known.unsure:
            return
        file_name = spec.get("completion", {}).get("fileName")
        expected = {}
        if known.outcome == "Pending":
            expected = {known.name: known.size}
        elif known.outcome == "Completed" and not known.deleted:
            (file,) = live
            assert self.uploader.read_file(file) == known.join(known.listed)
            expected = {file_name: known.size}
        claims = self.run(self.read_claims())
        kept = {name: size for name, size in claims.items() if name in (known.name, file_name)}
        assert kept == expected, "I6"

    async def read_claims(self) -> dict[str, int]:
        """What the account's storage holds, made again from the record where it was lost."""
        while True:
            try:
                claims = await self.storage.list_claims("demo", "files", 0)
            except CountersStale:
                await rebuild_pool(self.kube, self.storage, "demo", "files")
            else:
                return {claim.member: claim.bytes for claim in claims}


def test_upload_has_one_outcome_under_races_and_kills() -> None:
    run_state_machine_as_test(
        Uploading,
        settings=settings(
            max_examples=1000 if IS_WHOLE else 8,
            stateful_step_count=30 if IS_WHOLE else 20,
            deadline=None,
        ),
    )


def test_part_that_races_with_a_cancel_after_a_loss_is_a_conflict() -> None:
    """The cancel drops the counts of the Upload before the part is counted."""
    state = Uploading()
    try:
        state.lose()
        state.create(kill=None, size=1)
        state.race(kill=None, number=0, seed=28219, wanted=["part", "part", "cancel"])
    finally:
        state.teardown()
