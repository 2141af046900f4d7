"""`gatewayctl chat`: a conversation with a language model in the terminal, streaming."""

import sys
import time
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway_cli.commands import rest_command
from gateway_cli.output import print_note
from gateway_cli.rest.access import Body
from gateway_cli.session import interruptible
from gateway_core.billing.token_prices import sum_tokens
from gateway_core.llm.formats.usage import read_chat_usage
from gateway_core.providers.price_schedules import read_rates

if TYPE_CHECKING:
    from gateway_cli.rest.client import RestApi

app = typer.Typer(add_completion=False)
PROMPT = "> "
_MILLION = 1_000_000
MIN_SECONDS_OF_RATE = 0.1
"""Shortest time after the first token of which tokens a second are shown."""


@rest_command(app, None)
async def chat(
    api: "RestApi",
    model: Annotated[str, typer.Option(envvar="GATEWAY_CHAT_MODEL", help="The model's id.")],
    prompt: Annotated[
        list[str] | None,
        typer.Argument(help="What to say. Without it each line of standard input is said in turn."),
    ] = None,
    system: Annotated[str | None, typer.Option(help="Instructions for the model.")] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Most tokens of an answer.")] = None,
) -> None:
    """Say something to a language model and print its answer as it comes.

    Afterwards standard error has the tokens, the cost and the speed.
    """
    fields: Body = {"model": model, "messages": []}
    if max_tokens is not None:
        fields["max_tokens"] = max_tokens
    if system is not None:
        fields["messages"].append({"role": "system", "content": system})
    price = await api.get_price("chat", model)
    if prompt:
        await answer(api, fields, " ".join(prompt), price)
        return
    is_terminal = sys.stdin.isatty()
    while True:
        if is_terminal:
            sys.stderr.write(PROMPT)
            sys.stderr.flush()
        with interruptible():
            line = sys.stdin.readline()
        if not line:
            return
        if line.strip():
            await answer(api, fields, line.strip(), price)


async def answer(api: "RestApi", fields: Body, prompt: str, price: Body | None) -> None:
    """Say `prompt`, print the answer and its figures, and add both to the conversation."""
    fields["messages"].append({"role": "user", "content": prompt})
    text, figures = "", Figures(time.monotonic())
    async for chunk in api.stream_chat(fields):
        for choice in chunk["choices"]:
            piece = choice["delta"].get("content") or ""
            if piece:
                figures.note_text()
                text += piece
                sys.stdout.write(piece)
                sys.stdout.flush()
        figures.usage = chunk.get("usage") or figures.usage
    sys.stdout.write("\n")
    print_note(figures.describe(price))
    fields["messages"].append({"role": "assistant", "content": text})


@dataclass(slots=True)
class Figures:
    """Times and tokens of one answer; times are seconds of the monotonic clock."""

    began: float
    first: float | None = None
    usage: Body | None = None

    def note_text(self) -> None:
        """Note that text has come."""
        if self.first is None:
            self.first = time.monotonic()

    def describe(self, price: Body | None) -> str:
        """Return one line for people."""
        now = time.monotonic()
        first = self.first or now
        words = [f"first token after {first - self.began:.2f} s"]
        if self.usage is not None:
            given, made = self.usage["prompt_tokens"], self.usage["completion_tokens"]
            words.insert(0, f"{given} token{'' if given == 1 else 's'} in, {made} out")
            # a rate of less time is that of one read of the socket
            if now - first >= MIN_SECONDS_OF_RATE:
                words.append(f"{made / (now - first):.0f} tokens a second")
            cost = compute_cost(self.usage, price)
            if cost is not None:
                words.append(f"{cost / _MILLION:.6f} USD")
        return ", ".join(words)


def compute_cost(usage: Body, price: Body | None) -> int | None:
    """Return an answer's micro-dollars by the price list; None where the price is not known."""
    config: Any = (price or {}).get("billing_config")
    used = read_chat_usage(usage)
    if config is None or used is None:
        return None
    total = sum_tokens(read_rates(config, used.input), used)
    per_call: int = config["per_call_micros"] or 0
    return per_call + ceil(total / _MILLION)
