"""Calls of language models, by model and provider."""

from tools.panels.parts import Panel, Query, Row, quantiles, rate

_BOTH = "model, provider"
_NAMES = "{{model}} {{provider}}"

LLM: Row = (
    "Language models",
    (
        Panel(
            "Calls by outcome",
            "reqps",
            "Calls that a provider answered; failed ones broke off in the middle.",
            (Query(rate("gateway_llm_calls_total", "model, outcome"), "{{model}} {{outcome}}"),),
            stacked=True,
        ),
        Panel(
            "Failed attempts",
            "reqps",
            "By error. Another provider of the model was tried, if there was one.",
            (
                Query(
                    rate("gateway_llm_attempt_failures_total", "provider, error"),
                    "{{provider}} {{error}}",
                ),
            ),
            stacked=True,
        ),
        Panel(
            "Time to first token",
            "s",
            "From a streaming call's admission to its first output.",
            quantiles("gateway_llm_first_token_seconds", _BOTH, "", _NAMES),
        ),
        Panel(
            "Time of the provider",
            "s",
            "From the request to the end of the response.",
            quantiles("gateway_llm_upstream_seconds", _BOTH, "", _NAMES),
        ),
        Panel(
            "Time of the gateway",
            "s",
            "From a call's start to the request to the provider, with failed attempts.",
            quantiles("gateway_llm_overhead_seconds", _BOTH, "", _NAMES),
        ),
        Panel(
            "Tokens",
            "short",
            "A second, by kind: input includes cached, output includes reasoning.",
            (Query(rate("gateway_llm_tokens_total", "model, kind"), "{{model}} {{kind}}"),),
        ),
        Panel(
            "Output tokens a second of a call",
            "short",
            "Completed calls.",
            quantiles("gateway_llm_output_tokens_per_second", _BOTH, "", _NAMES),
        ),
        Panel(
            "Calls with more tokens than reserved",
            "short",
            "A second; what is beyond the reservation is not charged.",
            (Query(rate("gateway_llm_calls_beyond_bound_total", "model"), "{{model}}"),),
        ),
        Panel(
            "Answers from the cache",
            "short",
            "Look-ups a second, by outcome: hit or miss.",
            (
                Query(
                    rate("gateway_llm_cache_lookups_total", "model, outcome"),
                    "{{model}} {{outcome}}",
                ),
            ),
        ),
    ),
)
