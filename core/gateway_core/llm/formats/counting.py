"""Meaning of the token counts that providers report: one rule for all formats.

Providers disagree on whether cached tokens are part of the prompt and reasoning is part of the
output, and some report hidden reasoning in the total alone. The total decides where it can.
"""

from dataclasses import dataclass
from itertools import product

from gateway_core.llm.formats.calls import TokenUsage


@dataclass(slots=True)
class ReportedCounts:
    """Token counts as a provider reports them; 0 where it reports none.

    `audio` and `image` of the prompt include `cached_audio` and `cached_image`, and `written`
    includes `written_hour`. `is_reasoning_apart`: the format documents reasoning as no part of
    `output`.
    """

    input: int
    output: int
    total: int = 0
    reasoning: int = 0
    cached: int = 0
    cached_audio: int = 0
    cached_image: int = 0
    written: int = 0
    written_hour: int = 0
    audio: int = 0
    image: int = 0
    output_audio: int = 0
    output_image: int = 0
    is_reasoning_apart: bool = False


def interpret_counts(counts: ReportedCounts) -> TokenUsage | None:
    """Return the usage that the counts mean; None where they count nothing.

    - Input and output add up to the total, if some reading of the parts gives that sum.
    - Tokens that only the total shows are output, or input where no input is reported.
    - A part that is larger than its whole is no part of it. Without a total that proves this, the
      usage is marked as estimated.
    """
    if not counts.input and not counts.output:
        return None
    total = counts.total
    inputs, outputs = _list_inputs(counts), _list_outputs(counts)
    given, made = inputs[0], outputs[0]
    is_estimated = False
    for one, other in product(inputs, outputs):
        if one + other == total:
            given, made = one, other
            break
    else:
        # no total proves the reading
        is_estimated = given > counts.input or (
            not counts.is_reasoning_apart and made > counts.output
        )
        if total > given + made:
            if counts.input:
                made = total - given
            else:
                given, is_estimated = total - made, False
    return _divide(counts, given, made, is_estimated=is_estimated)


def _list_inputs(counts: ReportedCounts) -> list[int]:
    """Return possible sums of the input, the most probable one first."""
    prompt, cached, written = counts.input, counts.cached, counts.written
    inputs = [
        prompt + (written if is_written_apart else 0) + (cached if is_cached_apart else 0)
        for is_cached_apart, is_written_apart in product((False, True), repeat=2)
        if (0 if is_cached_apart else cached) + (0 if is_written_apart else written) <= prompt
    ]
    return inputs or [prompt + cached + written]


def _list_outputs(counts: ReportedCounts) -> list[int]:
    """Return possible sums of the output, the most probable one first."""
    output, reasoning = counts.output, counts.reasoning
    if reasoning > output:
        return [output + reasoning]
    outputs = [output, output + reasoning]
    return outputs[::-1] if counts.is_reasoning_apart else outputs


def _divide(counts: ReportedCounts, given: int, made: int, *, is_estimated: bool) -> TokenUsage:
    """Return a usage whose parts fit into the sums `given` and `made`."""
    cached = min(counts.cached, given)
    written = min(counts.written, given - cached)
    cached_audio = min(counts.cached_audio, cached)
    rest = given - cached - written
    audio = min(max(0, counts.audio - cached_audio), rest)
    output_audio = min(counts.output_audio, made)
    return TokenUsage(
        given,
        made,
        cached=cached,
        cached_audio=cached_audio,
        written=written,
        written_hour=min(counts.written_hour, written),
        audio=audio,
        image=min(max(0, counts.image - counts.cached_image), rest - audio),
        output_audio=output_audio,
        output_image=min(counts.output_image, made - output_audio),
        reasoning=min(counts.reasoning, made),
        estimated=is_estimated,
    )
