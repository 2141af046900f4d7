"""Errors, time-outs and retries, and another model where one fails."""

import os

import openai

client = openai.OpenAI(
    base_url=os.environ["GATEWAY_BASE_URL"] + "/v1",
    api_key=os.environ["GATEWAY_API_KEY"],
    # of each attempt, in seconds
    timeout=60,
    # after 408, 409, 429, 5xx and lost connections, unless `x-should-retry` is false
    max_retries=3,
)
messages = [{"role": "user", "content": "Hello there"}]

try:
    client.chat.completions.create(model="no-such-model", messages=messages)
except openai.APIStatusError as error:
    print(error.status_code, error.code)

answer = client.chat.completions.create(
    model="sim-chat",
    messages=messages,
    extra_headers={"x-gateway-fallback-models": "sim-google", "x-gateway-timeout": "30"},
)
print(answer.model)

names = [model.id for model in client.models.list()]
print("sim-google" in names, "no-such-model" in names)
