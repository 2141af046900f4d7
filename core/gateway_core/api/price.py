"""Prices of a GatewayModel."""

from typing import Annotated

from pydantic import ConfigDict, Field

from gateway_core.api.resource import (
    Micros,
    Part,
    Time,
    checked,
    map_list,
    rule,
)


class SecondPrice(Part):
    """Price of a second of output."""

    resolution: Annotated[
        str,
        Field(
            max_length=63,
            description="Output resolution, or * (default) for all without an entry of their own.",
        ),
    ] = "*"
    micros: Annotated[Micros, Field(description="Price of one second of output, in micro-dollars.")]


class TokenRates(Part):
    """Prices of a million tokens, in micro-dollars (1,000,000 = 1 dollar), by kind of token."""

    input_per_million_micros: Annotated[
        Micros | None, Field(description="Price of a million input tokens, in micro-dollars.")
    ] = None
    output_per_million_micros: Annotated[
        Micros | None,
        Field(
            description="Price of a million output tokens, in micro-dollars; reasoning is output."
        ),
    ] = None
    cached_per_million_micros: Annotated[
        Micros | None,
        Field(
            description="Price of a million input tokens that were read from the provider's cache,"
            " in micro-dollars. Absent: the rate of other input."
        ),
    ] = None
    cached_audio_per_million_micros: Annotated[
        Micros | None,
        Field(
            description="Price of a million input tokens of sound that were read from the"
            " provider's cache, in micro-dollars. Absent: cachedPerMillionMicros."
        ),
    ] = None
    cache_write_per_million_micros: Annotated[
        Micros | None,
        Field(
            description="Price of a million input tokens that were written to the provider's cache,"
            " in micro-dollars. Absent: inputPerMillionMicros."
        ),
    ] = None
    cache_write_hour_per_million_micros: Annotated[
        Micros | None,
        Field(
            description="Price of a million input tokens that were written to the provider's cache"
            " for an hour, in micro-dollars. Absent: cacheWritePerMillionMicros."
        ),
    ] = None
    audio_input_per_million_micros: Annotated[
        Micros | None,
        Field(
            description="Price of a million input tokens of sound, in micro-dollars. Absent:"
            " inputPerMillionMicros."
        ),
    ] = None
    image_input_per_million_micros: Annotated[
        Micros | None,
        Field(
            description="Price of a million input tokens of images, in micro-dollars. Absent:"
            " inputPerMillionMicros."
        ),
    ] = None
    audio_output_per_million_micros: Annotated[
        Micros | None,
        Field(
            description="Price of a million output tokens of sound, in micro-dollars. Absent:"
            " outputPerMillionMicros."
        ),
    ] = None
    image_output_per_million_micros: Annotated[
        Micros | None,
        Field(
            description="Price of a million output tokens of images, in micro-dollars. Absent:"
            " outputPerMillionMicros."
        ),
    ] = None


class PromptTier(TokenRates):
    """Rates of calls with long prompts; they apply to all tokens of such a call.

    A rate that the tier lacks is the price's own.
    """

    above_prompt_tokens: Annotated[
        int,
        Field(
            ge=1,
            le=100_000_000,
            description="The tier applies to calls whose prompt has more tokens than this, cached"
            " ones included. Of several the one with the highest number applies.",
        ),
    ]


class Price(TokenRates):
    """Price of a call from `effectiveTime` on: the sum of all that is given.

    Tokens are priced by the million. A kind of token without a rate of its own, such as sound,
    costs as much as other input or output.
    """

    model_config = ConfigDict(
        json_schema_extra=checked(
            rule(
                "has(self.perCallMicros) || has(self.perSecond) || has(self.perImageMicros)"
                " || has(self.inputPerMillionMicros) || has(self.outputPerMillionMicros)",
                "at least one of `perCallMicros`, `perSecond`, `perImageMicros`,"
                " `inputPerMillionMicros` and `outputPerMillionMicros` must be specified",
            )
        )
    )

    effective_time: Annotated[
        Time | None,
        Field(
            description="From when on the price is valid; the latest one that has begun is charged."
            " Absent: since always."
        ),
    ] = None
    per_call_micros: Annotated[
        Micros | None,
        Field(description="Price of a call, in micro-dollars (1,000,000 = 1 dollar)."),
    ] = None
    per_second: Annotated[
        list[SecondPrice] | None,
        Field(min_length=1, description="Price of a second of output, by resolution."),
        map_list("resolution", max_items=32),
    ] = None
    per_image_micros: Annotated[
        Micros | None, Field(description="Price of each image of the input, in micro-dollars.")
    ] = None
    tiers: Annotated[
        list[PromptTier] | None,
        Field(
            min_length=1,
            description="Rates of tokens for calls with long prompts, by the length from which they"
            " apply; a rate that is absent there is the price's own. Absent: one rate for all"
            " lengths.",
        ),
        map_list("abovePromptTokens", max_items=8),
    ] = None
