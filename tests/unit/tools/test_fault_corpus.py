"""The corpus of hostile URLs is what it says, and the tallies count what they should."""

import pytest

from gateway_core.egress.addresses import AddressPolicy, AddressRefused
from tests.servers.hostile_urls import CORPUS, HostileUrl
from tests.shares import SHARE, share
from tests.tallies import Tally, format_summary

POLICY = AddressPolicy()


def test_corpus_has_120_urls() -> None:
    assert len({hostile.url for hostile in CORPUS}) == 120


@pytest.mark.parametrize("hostile", CORPUS, ids=lambda hostile: hostile.url)
def test_every_url_leads_to_what_the_policy_refuses(hostile: HostileUrl) -> None:
    if hostile.is_literal:
        with pytest.raises(AddressRefused):
            POLICY.check_url_literal(hostile.url)
    for answer in hostile.answers:
        for address in answer:
            with pytest.raises(AddressRefused):
                POLICY.check_ip(address)


def test_share_is_rounded_up() -> None:
    assert share(100) == SHARE
    assert share(25) >= 25 * SHARE / 100
    assert share(1) == 1


async def test_tally_counts_violations_and_goes_on() -> None:
    tally = Tally("F2", "an example")
    async with tally.trial():
        pass
    tally.check()
    async with tally.trial(count=3):
        raise AssertionError("I2: two jobs")
    assert tally.describe()["trials"] == 4
    with pytest.raises(AssertionError, match="F2, an example: 1 violations in 4 trials:\nI2: two"):
        tally.check()


async def test_tally_gives_up_when_much_is_broken() -> None:
    tally = Tally("F1", "an example")

    async def break_always() -> None:
        for _ in range(100):
            async with tally.trial():
                raise AssertionError("I1: not ended")

    with pytest.raises(AssertionError, match="3 violations"):
        await break_always()
    assert tally.trials == 3


def test_summary_adds_up() -> None:
    first, second = Tally("F14", "b"), Tally("F2", "a")
    first.trials, first.violations, first.swept = 2, ["I2"], 3
    second.trials, second.not_judged = 5, 1
    second.note("s", 1.5)
    told = [first.describe(), second.describe(), second.describe()]
    _, first, second, last = format_summary(told)
    assert first.split() == ["F2", "a", "10", "0", "2", "0", "s", "1.5"]
    assert second.split() == ["F14", "b", "2", "1", "0", "3"]
    assert last.split()[-4:] == ["12", "1", "2", "3"]
