"""Ids that tell their order (contract §0.4, §3.4)."""

import random

import pytest

from gateway_core.api.ids import IdMint, Ownership, head_of, id_to_name, name_to_id, read_order


@pytest.fixture
def mint() -> IdMint:
    return IdMint(b"k" * 32)


def test_order_is_that_of_minting_whatever_the_clock_does(mint: IdMint) -> None:
    clock = [1_795_000_000_000 + step for step in (0, 0, 0, 5, 5, -1000, 0, 6)]
    minted = [mint.mint_ordered("file", "demo", now) for now in clock]
    shuffled = random.Random(7).sample(minted, len(minted))
    assert sorted(shuffled, key=read_order) == minted


def test_a_later_clock_is_after_in_another_process(mint: IdMint) -> None:
    other = IdMint(b"k" * 32)
    first = mint.mint_ordered("file", "demo", 1_795_000_000_000)
    second = other.mint_ordered("file", "demo", 1_795_000_000_001)
    assert read_order(first) < read_order(second)


def test_they_are_owned_as_others_are(mint: IdMint) -> None:
    wire_id = mint.mint_ordered("file", "demo", 1_795_000_000_000)
    assert wire_id.startswith("file-")
    assert mint.check("file", "demo", wire_id) is Ownership.MINTED
    assert mint.check("file", "other", wire_id) is Ownership.FOREIGN


def test_what_was_not_minted_is_before_everything() -> None:
    assert read_order("file-made-by-hand") == 0


@pytest.mark.parametrize(
    ("prefix", "wire_id", "name"),
    [
        ("file", "file-abc", "file-abc"),
        ("batch", "batch_abc", "batch-abc"),
        ("task", "task_a-b", "task-a-b"),
    ],
)
def test_ids_and_names_are_one_to_one(prefix: str, wire_id: str, name: str) -> None:
    assert wire_id.startswith(head_of(prefix))
    assert id_to_name(wire_id) == name
    assert name_to_id(name) == wire_id
