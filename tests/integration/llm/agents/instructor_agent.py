"""Structured answers by a tool that instructor asks for again: the first one is invalid."""

import os
from typing import Any

import instructor
import openai
from google import genai
from google.genai import types
from pydantic import BaseModel, field_validator

BASE_URL, KEY = os.environ["BASE_URL"], os.environ["KEY"]
OPENAI = openai.OpenAI(base_url=f"{BASE_URL}/v1", api_key=KEY, max_retries=0)
GOOGLE = genai.Client(api_key=KEY, http_options=types.HttpOptions(base_url=BASE_URL))


def hold(client: Any, **fields: Any) -> None:
    """Have the model fill in a form, which refuses the first answer."""
    cities: list[str] = []

    class Weather(BaseModel):
        """The weather of a city."""

        city: str

        @field_validator("city")
        @classmethod
        def check(cls, city: str) -> str:
            cities.append(city)
            if len(cities) == 1:
                raise ValueError("Say it again.")
            return city

    made = client.create(
        response_model=Weather,
        messages=[{"role": "user", "content": "How is the weather?"}],
        max_retries=2,
        **fields,
    )
    assert made.city == "sample"
    assert cities == ["sample", "sample"]


def talk_chat(model: str) -> None:
    """Chat Completions."""
    hold(instructor.from_openai(OPENAI, mode=instructor.Mode.TOOLS), model=model)


def talk_responses(model: str) -> None:
    """Responses."""
    made = instructor.from_openai(OPENAI, mode=instructor.Mode.RESPONSES_TOOLS)
    hold(made, model=model, store=False)


def talk_google(model: str) -> None:
    """Google's dialect."""
    hold(instructor.from_genai(GOOGLE, mode=instructor.Mode.GENAI_TOOLS), model=model)
