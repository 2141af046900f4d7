"""Files through any history of calls are what a plain model of them says; bad forms leave nothing.

The model is a list of what was made, in order, with what was taken away since.
"""

import asyncio
import tracemalloc
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.unit.apiserver.filing import BOUNDARY, FILES, Cabinet, end, form, part
from tests.unit.apiserver.gateway import Answer, Gateway, clear_environment

MIB = 1024 * 1024


@dataclass
class Kept:
    """One file of the model."""

    name: str
    content: bytes
    purpose: str
    shown: bool = True


class Files(RuleBasedStateMachine):
    """Any order of creates, reads, lists, deletes and expiries."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.kept: list[Kept] = []

    @initialize()
    def begin(self) -> None:
        with pytest.MonkeyPatch.context() as patch:
            clear_environment(patch)
            self.gateway = self.run(_build())
        self.cabinet = Cabinet(self.gateway)

    def run(self, work: Any) -> Any:
        return self.loop.run_until_complete(work)

    def ask(self, method: str, path: str, *headers: tuple[str, str]) -> Answer:
        answer: Answer = self.run(self.cabinet.ask(method, path, b"", *headers))
        return answer

    def teardown(self) -> None:
        self.loop.close()

    @rule(
        content=st.binary(min_size=1, max_size=40),
        purpose=st.sampled_from(["batch", "user_data"]),
        is_past=st.booleans(),
    )
    def create(self, content: bytes, purpose: str, is_past: bool) -> None:
        """A file; of those made an hour ago and meant for an hour, nothing is shown."""
        age, options = timedelta(), {}
        if is_past:
            age, options = timedelta(hours=1), {"anchor": "created_at", "seconds": "3600"}
        stamp = (datetime.now(UTC) - age).strftime("%Y-%m-%dT%H:%M:%SZ")
        self.gateway.kube.clock = lambda: stamp
        made = self.run(self.cabinet.make(content, purpose=purpose, **options))
        assert (made["bytes"], made["purpose"]) == (len(content), purpose)
        self.kept.append(Kept(made["id"], content, purpose, not is_past))

    @precondition(lambda self: self.kept)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        """Once; then it is gone."""
        kept = data.draw(st.sampled_from(self.kept))
        answer = self.ask("DELETE", f"{FILES}/{kept.name}")
        assert answer.status == (200 if kept.shown else 404)
        kept.shown = False

    @precondition(lambda self: self.kept)
    @rule(data=st.data(), start=st.integers(0, 45), length=st.integers(1, 45))
    def read(self, data: st.DataObject, start: int, length: int) -> None:
        """The file, and any range of its content."""
        kept = data.draw(st.sampled_from(self.kept))
        assert self.ask("GET", f"{FILES}/{kept.name}").status == (200 if kept.shown else 404)
        wanted = ("Range", f"bytes={start}-{start + length - 1}")
        answer = self.ask("GET", f"{FILES}/{kept.name}/content", wanted)
        if not kept.shown:
            assert answer.status == 404
        elif start >= len(kept.content):
            assert answer.status == 416
        else:
            assert (answer.status, answer.body) == (206, kept.content[start : start + length])

    @rule(
        data=st.data(),
        limit=st.integers(1, 4),
        order=st.sampled_from(["asc", "desc"]),
        purpose=st.sampled_from([None, "batch", "user_data"]),
        is_lost=st.booleans(),
    )
    def list_all(
        self, data: st.DataObject, limit: int, order: str, purpose: str | None, is_lost: bool
    ) -> None:
        """Page by page from any place, that of a file that is gone as well."""
        if is_lost:
            self.gateway.storage.lose()
        ordered = self.kept if order == "asc" else self.kept[::-1]
        after = data.draw(st.none() | st.sampled_from(ordered)) if ordered else None
        place = 0 if after is None else ordered.index(after) + 1
        wanted = [
            kept.name for kept in ordered[place:] if kept.shown and purpose in (None, kept.purpose)
        ]
        query = f"limit={limit}&order={order}" + (f"&purpose={purpose}" if purpose else "")
        cursor, found, has_more = after.name if after else None, [], True
        while has_more:
            this = query + (f"&after={cursor}" if cursor else "")
            page = self.run(self.cabinet.ask("GET", FILES, query=this)).json
            names = [file["id"] for file in page["data"]]
            assert len(names) == limit or not page["has_more"]
            found += names
            has_more, cursor = page["has_more"], page["last_id"]
        assert found == wanted

    @invariant()
    def what_is_shown_has_its_bytes(self) -> None:
        """Each file has bytes of its own."""
        shown = [kept.content for kept in self.kept if kept.shown]
        stored = list(self.gateway.store.contents.values()) if self.kept else []
        for content in shown:
            stored.remove(content)


async def _build() -> Gateway:
    return Gateway()


Files.TestCase.settings = settings(
    max_examples=15,
    stateful_step_count=15,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestFiles = Files.TestCase

_KIND = f"multipart/form-data; boundary={BOUNDARY}"
_SOUND = form(b"some bytes", anchor="created_at", seconds="3600")


async def _refuse(cabinet: Cabinet, body: bytes, *headers: tuple[str, str]) -> int:
    """The status of a create that is the client's fault and leaves nothing."""
    kinds = headers or (("Content-Type", _KIND),)
    answer = await cabinet.ask("POST", FILES, body, *kinds)
    assert 400 <= answer.status < 500, answer.body
    assert set(answer.json["error"]) == {"message", "type", "param", "code"}
    assert await cabinet.count_traces() == (0, 0, 0)
    return answer.status


_FUZZ = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@given(length=st.integers(0, len(_SOUND) - 5))
@_FUZZ
async def test_a_form_that_is_cut_off(gateway: Gateway, length: int) -> None:
    assert await _refuse(Cabinet(gateway), _SOUND[:length]) == 400


@given(body=st.binary(max_size=300))
@_FUZZ
async def test_what_is_no_form(gateway: Gateway, body: bytes) -> None:
    await _refuse(Cabinet(gateway), body)
    await _refuse(Cabinet(gateway), f"--{BOUNDARY}\r\n".encode() + body)


@given(boundary=st.text("abcdef0", max_size=80).filter(lambda text: text != BOUNDARY))
@_FUZZ
async def test_another_boundary(gateway: Gateway, boundary: str) -> None:
    kind = ("Content-Type", f"multipart/form-data; boundary={boundary}")
    assert await _refuse(Cabinet(gateway), _SOUND, kind) == 400


_FILE = part("file", b"x", filename="a")
_PURPOSE = part("purpose", "user_data")
BAD_FORMS = {
    "a field twice": _PURPOSE + _PURPOSE + _FILE + end(),
    "two files": _PURPOSE + _FILE + _FILE + end(),
    "a NUL in the purpose": part("purpose", b"user\0data") + _FILE + end(),
    "no UTF-8": part("purpose", b"\xff\xfe") + _FILE + end(),
    "a field of 10 MB": part("purpose", b"a" * 10_000_000) + _FILE + end(),
    "an unknown field of 10 MB": _PURPOSE + part("more", b"a" * 10_000_000) + _FILE + end(),
    "too many parts": _PURPOSE + part("more", "a") * 100 + _FILE + end(),
    "a head of 10 MB": _PURPOSE + part("file", b"x", "X: " + "a" * 10_000_000, filename="a"),
}


@pytest.mark.parametrize("case", BAD_FORMS)
async def test_a_bad_form_is_refused_and_not_kept_in_memory(gateway: Gateway, case: str) -> None:
    body = BAD_FORMS[case]
    pieces = [body[at : at + 65_536] for at in range(0, len(body), 65_536)]
    cabinet = Cabinet(gateway)
    tracemalloc.start()
    try:
        kind = ("Content-Type", _KIND)
        answer = await cabinet.ask("POST", FILES, b"", kind, chunks=pieces)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert answer.status in (400, 413), answer.body
    assert await cabinet.count_traces() == (0, 0, 0)
    assert peak < 4 * MIB


@pytest.mark.parametrize("encoding", ["gzip", "br", "identity, gzip"])
async def test_an_encoded_form_is_refused(gateway: Gateway, encoding: str) -> None:
    headers = (("Content-Type", _KIND), ("Content-Encoding", encoding))
    assert await _refuse(Cabinet(gateway), _SOUND, *headers) == 415
