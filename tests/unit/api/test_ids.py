"""Ids: bound to an account, unguessable, and ordered for files (contract §0.4, §3.4)."""

import random
import re
import string

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from gateway_core.api.ids import (
    IdMint,
    Ownership,
    head_of,
    id_to_name,
    mint_request_id,
    name_to_id,
    read_order,
)

MINT = IdMint(b"k" * 32)
BASE32 = "abcdefghijklmnopqrstuvwxyz234567"

accounts = st.from_regex(r"\A[a-z0-9]([-a-z0-9]{0,20}[a-z0-9])?\Z")
prefixes = st.sampled_from(["task", "batch", "batch_req", "grd"])
bodies = st.text(alphabet=BASE32, min_size=26, max_size=26)


@given(prefixes, accounts)
def test_minted_id_is_its_accounts(prefix: str, account: str) -> None:
    wire_id = MINT.mint_random(prefix, account)
    assert re.fullmatch(rf"{prefix}_[a-z2-7]{{26}}", wire_id)
    assert MINT.check(prefix, account, wire_id) is Ownership.MINTED


@given(accounts, accounts)
def test_minted_id_is_foreign_to_every_other_account(mine: str, other: str) -> None:
    assume(mine != other)
    assert MINT.check("task", other, MINT.mint_random("task", mine)) is Ownership.FOREIGN


def test_minted_id_is_of_one_kind() -> None:
    wire_id = MINT.mint_random("task", "demo")
    assert MINT.check("batch", "demo", wire_id) is Ownership.NAMED
    moved = wire_id.replace("task_", "batch_")
    assert MINT.check("batch", "demo", moved) is Ownership.FOREIGN


def test_ids_minted_with_another_key_are_foreign() -> None:
    other = IdMint(b"o" * 32)
    assert other.check("task", "demo", MINT.mint_random("task", "demo")) is Ownership.FOREIGN
    assert other.mint_keyed("task", "demo", "k") != MINT.mint_keyed("task", "demo", "k")


@given(bodies)
@example("7" * 26)
@example("a" * 26)
def test_guess_is_foreign(body: str) -> None:
    assert MINT.check("task", "demo", f"task_{body}") is Ownership.FOREIGN


@given(st.integers(min_value=5, max_value=30), st.sampled_from(BASE32))
def test_changed_character_makes_an_id_foreign(place: int, character: str) -> None:
    wire_id = MINT.mint_keyed("task", "demo", "path", "key")
    assume(wire_id[place] != character)
    changed = wire_id[:place] + character + wire_id[place + 1 :]
    assert MINT.check("task", "demo", changed) is Ownership.FOREIGN


@given(st.text(max_size=40))
@example("task_")
@example("task_admin-made")
@example("TASK_" + "A" * 26)
@example("task_" + "A" * 26)
@example("task_" + "a" * 26 + "\n")
@example("task-" + "a" * 26)
@example("task_" + "1" * 26)
def test_garbage_is_never_minted_and_never_an_error(text: str) -> None:
    assert MINT.check("task", "demo", text) is not Ownership.MINTED


@given(accounts, st.lists(st.text(alphabet=string.printable, max_size=20), max_size=3))
def test_keyed_id_is_always_the_same(account: str, parts: list[str]) -> None:
    wire_id = MINT.mint_keyed("task", account, *parts)
    assert wire_id == IdMint(b"k" * 32).mint_keyed("task", account, *parts)
    assert MINT.check("task", account, wire_id) is Ownership.MINTED


def test_keyed_id_hangs_on_every_part() -> None:
    made = {
        MINT.mint_keyed("task", "demo", "path", "key"),
        MINT.mint_keyed("task", "demo", "path", "yek"),
        MINT.mint_keyed("task", "demo", "pathkey", ""),
        MINT.mint_keyed("task", "demo", "", "pathkey"),
        MINT.mint_keyed("task", "demo", "htap", "key"),
        MINT.mint_keyed("task", "guest", "path", "key"),
        MINT.mint_keyed("batch", "demo", "path", "key").replace("batch", "task"),
    }
    assert len({wire_id[5:17] for wire_id in made}) == 7, "bodies differ, not only tags"


def test_random_ids_differ() -> None:
    assert len({MINT.mint_random("task", "demo") for _ in range(1000)}) == 1000


def test_request_ids_have_the_shape_of_ids() -> None:
    made = {mint_request_id() for _ in range(100)}
    assert len(made) == 100
    assert all(re.fullmatch(r"req_[a-z2-7]{26}", text) for text in made)


def test_short_key_is_refused() -> None:
    with pytest.raises(ValueError, match="16 bytes"):
        IdMint(b"short")


@given(st.from_regex(r"\Atask_[a-z0-9-]{1,57}\Z"))
def test_ids_and_names_are_one_to_one(wire_id: str) -> None:
    name = id_to_name(wire_id)
    assert re.fullmatch(r"task-[a-z0-9-]{1,57}", name)
    assert name_to_id(name) == wire_id


@pytest.fixture
def mint() -> IdMint:
    """A mint of its own: it remembers the last moment that it minted for."""
    return IdMint(b"k" * 32)


def test_ordered_ids_sort_as_minted_when_clock_steps_back(mint: IdMint) -> None:
    clock = [1_795_000_000_000 + step for step in (0, 0, 0, 5, 5, -1000, 0, 6)]
    minted = [mint.mint_ordered("file", "demo", now) for now in clock]
    shuffled = random.Random(7).sample(minted, len(minted))
    assert sorted(shuffled, key=read_order) == minted


def test_ordered_id_of_later_clock_sorts_after_that_of_another_process(mint: IdMint) -> None:
    other = IdMint(b"k" * 32)
    first = mint.mint_ordered("file", "demo", 1_795_000_000_000)
    second = other.mint_ordered("file", "demo", 1_795_000_000_001)
    assert read_order(first) < read_order(second)


def test_ordered_ids_are_bound_to_account(mint: IdMint) -> None:
    wire_id = mint.mint_ordered("file", "demo", 1_795_000_000_000)
    assert wire_id.startswith("file-")
    assert mint.check("file", "demo", wire_id) is Ownership.MINTED
    assert mint.check("file", "other", wire_id) is Ownership.FOREIGN


def test_name_made_by_hand_sorts_first() -> None:
    assert read_order("file-made-by-hand") == 0


@pytest.mark.parametrize(
    ("prefix", "wire_id", "name"),
    [
        ("file", "file-abc", "file-abc"),
        ("batch", "batch_abc", "batch-abc"),
        ("task", "task_a-b", "task-a-b"),
    ],
)
def test_head_of_prefix_begins_id_and_name(prefix: str, wire_id: str, name: str) -> None:
    assert wire_id.startswith(head_of(prefix))
    assert id_to_name(wire_id) == name
    assert name_to_id(name) == wire_id
