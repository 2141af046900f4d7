"""An answer, the same as a stream, and what the call cost."""

import os

from openai import OpenAI

client = OpenAI(
    base_url=os.environ["GATEWAY_BASE_URL"] + "/v1", api_key=os.environ["GATEWAY_API_KEY"]
)
messages = [{"role": "user", "content": "Hello there"}]

answer = client.chat.completions.create(model="sim-chat", messages=messages)
print(answer.choices[0].message.content)

stream = client.chat.completions.create(
    model="sim-chat", messages=messages, stream=True, stream_options={"include_usage": True}
)
for chunk in stream:
    if chunk.choices:
        print(chunk.choices[0].delta.content or "", end="")
    if chunk.usage:
        print("\ntokens:", chunk.usage.prompt_tokens, "in,", chunk.usage.completion_tokens, "out")

raw = client.chat.completions.with_raw_response.create(model="sim-chat", messages=messages)
print("cost:", raw.headers["x-gateway-cost"], "USD")
