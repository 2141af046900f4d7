"""Conversations of two steps with a tool, as LangChain's models hold them."""

import os
from typing import Any

from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langchain_google_genai import ChatGoogleGenerativeAI
from langchain_openai import ChatOpenAI

BASE_URL, KEY = os.environ["BASE_URL"], os.environ["KEY"]


@tool
def get_weather(city: str) -> str:
    """Look up the weather."""
    assert city == "sample"
    return "9 degrees"


def open_chat(model: str) -> ChatOpenAI:
    return ChatOpenAI(
        model=model, base_url=f"{BASE_URL}/v1", api_key=KEY, max_retries=0, stream_usage=True
    )


def open_responses(model: str) -> ChatOpenAI:
    return ChatOpenAI(
        model=model,
        base_url=f"{BASE_URL}/v1",
        api_key=KEY,
        max_retries=0,
        use_responses_api=True,
        output_version="responses/v1",
        store=False,
    )


def open_google(model: str) -> ChatGoogleGenerativeAI:
    return ChatGoogleGenerativeAI(model=model, base_url=BASE_URL, api_key=KEY, max_retries=0)


def hold(made: Any, *, stream: bool) -> None:
    """Ask, run the tool that the model calls, and read what the model makes of its result."""
    bound = made.bind_tools([get_weather])

    def ask(messages: list[Any]) -> Any:
        if not stream:
            return bound.invoke(messages)
        pieces = list(bound.stream(messages))
        answer = pieces[0]
        for piece in pieces[1:]:
            answer += piece
        return answer

    messages: list[Any] = [HumanMessage("Call get_weather for me")]
    first = ask(messages)
    [call] = first.tool_calls
    assert (call["name"], call["args"]) == ("get_weather", {"city": "sample"})
    last = ask([*messages, first, get_weather.invoke(call)])
    assert "9 degrees" in last.text, last
    assert last.usage_metadata["output_tokens"] > 0


def talk_chat(model: str) -> None:
    """Chat Completions."""
    hold(open_chat(model), stream=False)


def talk_chat_streamed(model: str) -> None:
    """Streams of Chat Completions."""
    hold(open_chat(model), stream=True)


def talk_responses(model: str) -> None:
    """Responses."""
    hold(open_responses(model), stream=False)


def talk_responses_streamed(model: str) -> None:
    """Streams of Responses."""
    hold(open_responses(model), stream=True)


def talk_google(model: str) -> None:
    """Google's dialect."""
    hold(open_google(model), stream=False)


def talk_google_streamed(model: str) -> None:
    """Streams of Google's dialect."""
    hold(open_google(model), stream=True)
