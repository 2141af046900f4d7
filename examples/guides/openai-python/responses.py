"""The Responses API, at once and as a stream."""

import os

from openai import OpenAI

client = OpenAI(
    base_url=os.environ["GATEWAY_BASE_URL"] + "/v1", api_key=os.environ["GATEWAY_API_KEY"]
)

response = client.responses.create(model="sim-chat", input="Hello there")
print(response.output_text)

for event in client.responses.create(model="sim-chat", input="Hello there", stream=True):
    if event.type == "response.output_text.delta":
        print(event.delta, end="")
    elif event.type == "response.completed":
        print("\ntokens:", event.response.usage.total_tokens)
