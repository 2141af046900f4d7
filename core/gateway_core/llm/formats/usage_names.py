"""Names of counters in the usages of providers."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class UsageNames:
    """Names of the counters in the usage of one of OpenAI's formats."""

    input: str
    output: str
    input_details: str
    output_details: str


CHAT = UsageNames(
    "prompt_tokens", "completion_tokens", "prompt_tokens_details", "completion_tokens_details"
)
RESPONSES = UsageNames(
    "input_tokens", "output_tokens", "input_tokens_details", "output_tokens_details"
)
# some providers report them beside the details, under names of their own
CACHED = ("cached_tokens", "cache_read_input_tokens", "prompt_cache_hit_tokens")
WRITTEN = ("cache_write_tokens", "cache_creation_tokens", "cache_creation_input_tokens")
WRITTEN_HOUR = ("cache_write_1h_tokens", "ephemeral_1h_input_tokens")
COUNTERS = ("_tokens", "TokenCount", "tokenCount")
"""Ends of the names of counters in a usage."""
WRITTEN_PARTS = ("cache_creation", "cache_creation_token_details")
OTHERS = frozenset(
    {
        *CACHED[1:],
        *WRITTEN,
        *WRITTEN_HOUR,
        *WRITTEN_PARTS,
        "audio_tokens",
        "cached_tokens_details",
        "image_tokens",
    }
)
PARTS = OTHERS | {"cached_tokens", "reasoning_tokens"}
"""All counters of parts of the input or the output, and what holds further ones."""
