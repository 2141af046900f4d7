"""Price of tokens, by their kind and by the length of the prompt (contract §2.7). Pure."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter
from typing import NamedTuple

from gateway_core.api.price import Price, PromptTier, TokenRates

_MILLION = 1_000_000
# at once, for each call reads them twice
_read_rates = attrgetter(
    "input_per_million_micros",
    "output_per_million_micros",
    "cached_per_million_micros",
    "cached_audio_per_million_micros",
    "cache_write_per_million_micros",
    "cache_write_hour_per_million_micros",
    "audio_input_per_million_micros",
    "image_input_per_million_micros",
    "audio_output_per_million_micros",
    "image_output_per_million_micros",
)


@dataclass(slots=True)
class TokenCounts:
    """Tokens of a call. `input` and `output` are sums; the other counts are parts of them.

    `cached` were read from the provider's cache, `cached_audio` of these are sound. `written` were
    written to it, `written_hour` of these for an hour. `audio` and `image` are neither cached nor
    written. It does not change, but a frozen one takes three times as long to create.
    """

    input: int
    output: int
    cached: int = 0
    cached_audio: int = 0
    written: int = 0
    written_hour: int = 0
    audio: int = 0
    image: int = 0
    output_audio: int = 0
    output_image: int = 0


class Rates(NamedTuple):
    """Micro-dollars for a million tokens of each kind, for prompts of one tier."""

    input: int
    cached: int
    cached_audio: int
    written: int
    written_hour: int
    audio: int
    image: int
    output: int
    output_audio: int
    output_image: int


def has_token_rates(price: Price) -> bool:
    """Return whether a price has rates of tokens."""
    # each token is input or output, and has the rate of that unless it has one of its own
    return any(
        getattr(part, name) is not None
        for part in (price, *(price.tiers or ()))
        for name in TokenRates.model_fields
    )


def find_rates(price: Price, prompt: int = 0) -> Rates:
    """Return the rates of a call whose prompt has so many tokens.

    The tier with the highest threshold below `prompt` applies to all tokens of the call.
    """
    if not price.tiers:
        return _complete_rates(_read_rates(price))
    tier: PromptTier | None = None
    for each in price.tiers:
        if each.above_prompt_tokens < prompt and (
            tier is None or each.above_prompt_tokens > tier.above_prompt_tokens
        ):
            tier = each
    rates = _read_rates(price)
    if tier is not None:
        # a rate that the tier lacks is the price's own
        rates = tuple(map(_choose, _read_rates(tier), rates))
    return _complete_rates(rates)


def list_tiers(price: Price) -> list[tuple[int, Rates]]:
    """Return the thresholds of a price, from 0 on, and the rates of prompts above each."""
    thresholds = sorted({0, *(tier.above_prompt_tokens for tier in price.tiers or ())})
    return [(threshold, find_rates(price, threshold + 1)) for threshold in thresholds]


def quote_tokens(price: Price, most_input: int, most_output: int, *, has_media: bool) -> int:
    """Return the most micro-dollars of a call within these numbers of tokens.

    The dearest tier that the prompt can reach counts, and of each tier the dearest kind of token.
    `has_media`: the prompt may have sound and images.
    """
    if not price.tiers:
        return _charge_whole(price, find_rates(price), most_input, most_output, has_media=has_media)
    return max(
        _charge_whole(price, rates, prompt, most_output, has_media=has_media)
        for rates, prompt in _list_reachable(price, most_input)
    )


def charge_tokens(price: Price, used: TokenCounts, *, reserved: int) -> int:
    """Return the micro-dollars of a call that used these tokens, at most those reserved for it."""
    total = sum_tokens(find_rates(price, used.input), used)
    return min(reserved, _round_up(price, total))


def sum_tokens(rates: Rates, used: TokenCounts) -> int:
    """Return the cost of tokens in millionths of a micro-dollar."""
    total = used.input * rates.input + used.output * rates.output
    # most calls have none of the other kinds
    if used.cached:
        audio = used.cached_audio
        total += (used.cached - audio) * (rates.cached - rates.input)
        total += audio * (rates.cached_audio - rates.input)
    if used.written:
        hour = used.written_hour
        total += (used.written - hour) * (rates.written - rates.input)
        total += hour * (rates.written_hour - rates.input)
    if used.audio or used.image:
        total += used.audio * (rates.audio - rates.input)
        total += used.image * (rates.image - rates.input)
    if used.output_audio or used.output_image:
        total += used.output_audio * (rates.output_audio - rates.output)
        total += used.output_image * (rates.output_image - rates.output)
    return total


def _list_reachable(price: Price, most_input: int) -> Iterator[tuple[Rates, int]]:
    """Yield the rates of each tier that a prompt can reach, and its longest prompt there."""
    tiers = list_tiers(price)
    ends = [threshold for threshold, _ in tiers[1:]]
    for (threshold, rates), end in zip(tiers, [*ends, most_input], strict=True):
        if threshold < most_input or threshold == 0:
            yield rates, min(end, most_input)


def _charge_whole(price: Price, rates: Rates, prompt: int, output: int, *, has_media: bool) -> int:
    dearest, dearest_output = _find_dearest(rates, has_media)
    return _round_up(price, prompt * dearest + output * dearest_output)


@lru_cache
def _find_dearest(rates: Rates, has_media: bool) -> tuple[int, int]:
    """Return the highest rate of input and of output."""
    dearest = max(rates.input, rates.cached, rates.written, rates.written_hour)
    if has_media:
        dearest = max(dearest, rates.cached_audio, rates.audio, rates.image)
    return dearest, max(rates.output, rates.output_audio, rates.output_image)


def _round_up(price: Price, total: int) -> int:
    """Return whole micro-dollars of a call whose tokens cost `total` millionths of one."""
    return (price.per_call_micros or 0) - (-total // _MILLION)


def _choose(rate: int | None, other: int | None) -> int | None:
    return other if rate is None else rate


@lru_cache
def _complete_rates(given: tuple[int | None, ...]) -> Rates:
    """Return all rates: a kind without one has that of the kind which it is part of."""
    input_, output, cached, cached_audio, written, hour, audio, image, made_audio, made_image = (
        given
    )
    input_, output = input_ or 0, output or 0
    audio = input_ if audio is None else audio
    written = input_ if written is None else written
    if cached_audio is None:
        cached_audio = audio if cached is None else cached
    return Rates(
        input_,
        input_ if cached is None else cached,
        cached_audio,
        written,
        written if hour is None else hour,
        audio,
        input_ if image is None else image,
        output,
        output if made_audio is None else made_audio,
        output if made_image is None else made_image,
    )
