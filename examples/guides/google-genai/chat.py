"""An answer, a stream, and an error."""

import os

from google import genai
from google.genai import errors, types

client = genai.Client(
    api_key=os.environ["GATEWAY_API_KEY"],
    http_options=types.HttpOptions(
        base_url=os.environ["GATEWAY_BASE_URL"],
        # of each attempt, in milliseconds
        timeout=60_000,
        # after 408, 429 and 5xx; without it the SDK repeats nothing
        retry_options=types.HttpRetryOptions(attempts=4),
    ),
)

answer = client.models.generate_content(model="sim-google", contents="Hello there")
print(answer.text)
print("tokens:", answer.usage_metadata.total_token_count)

for chunk in client.models.generate_content_stream(model="sim-google", contents="Hello there"):
    print(chunk.text or "", end="")
print()

try:
    client.models.generate_content(model="no-such-model", contents="Hello there")
except errors.APIError as error:
    print(error.code, error.status)
