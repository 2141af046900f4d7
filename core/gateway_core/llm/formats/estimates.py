"""Estimates of the tokens that no provider reports, and usages that are reported in parts."""

from dataclasses import replace

from gateway_core.llm.formats.calls import LlmCall, TokenUsage, estimate_tokens

UNSEEN_AFTER_SECONDS = 2.0
UNSEEN_TOKENS_PER_SECOND = 20
"""Estimate of the tokens that a provider writes while its client sees nothing, as it reasons or the
answer is no stream: nothing for 2 s, while it reads, then less than hosted models write."""


def estimate_usage(call: LlmCall, text_bytes: int, unseen_seconds: float = 0.0) -> TokenUsage:
    """Return usage of a call whose provider reported none, or whose stream broke off.

    `text_bytes` is the length of the output seen. `unseen_seconds` is how long the provider has
    worked for a client that left, before the first output that could be seen.
    """
    output = estimate_tokens(text_bytes)
    output += int(max(0.0, unseen_seconds - UNSEEN_AFTER_SECONDS) * UNSEEN_TOKENS_PER_SECOND)
    if call.max_output is not None:
        output = min(output, call.max_output * call.choices)
    return TokenUsage(call.input_estimate, output, estimated=True)


def complete_usage(call: LlmCall, reported: TokenUsage | None, text_bytes: int) -> TokenUsage:
    """Return the usage of a whole answer, with estimates of the counts that it lacks.

    `text_bytes` is the length of its output.
    """
    if reported is None:
        return estimate_usage(call, text_bytes)
    if reported.input and (reported.output or not text_bytes):
        return reported
    estimated = estimate_usage(call, text_bytes)
    return replace(
        reported,
        input=reported.input or estimated.input,
        output=reported.output or estimated.output,
        estimated=True,
    )


def complete_broken_usage(
    call: LlmCall, reported: TokenUsage | None, text_bytes: int, unseen_seconds: float
) -> TokenUsage:
    """Return the usage of a stream that broke off, with estimates of what was not reported.

    `text_bytes` is the length of the output seen, `unseen_seconds` as in `estimate_usage`.
    """
    estimated = estimate_usage(call, text_bytes, unseen_seconds)
    if reported is None:
        return estimated
    # it may have reported its prompt alone, or its output up to then
    if reported.input and reported.output and reported.output >= estimated.output:
        return reported
    return replace(
        reported,
        input=reported.input or estimated.input,
        output=max(reported.output, estimated.output),
        estimated=True,
    )


def join_usages(earlier: TokenUsage | None, later: TokenUsage) -> TokenUsage:
    """Return the usage that two of a stream mean: some providers count the prompt first, alone."""
    if earlier is None or later.input or not earlier.input:
        return later
    return replace(
        earlier,
        output=later.output,
        reasoning=later.reasoning,
        output_audio=later.output_audio,
        output_image=later.output_image,
        estimated=earlier.estimated or later.estimated,
    )
