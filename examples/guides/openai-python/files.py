"""A File, an Upload in parts, and a Batch of moderations."""

import json
import os
import time

from openai import OpenAI

client = OpenAI(
    base_url=os.environ["GATEWAY_BASE_URL"] + "/v1", api_key=os.environ["GATEWAY_API_KEY"]
)

file = client.files.create(file=("note.txt", b"Hello"), purpose="user_data")
print(file.filename, file.bytes, client.files.content(file.id).text)
client.files.delete(file.id)

upload = client.uploads.create(
    filename="long.txt", bytes=12, mime_type="text/plain", purpose="user_data"
)
parts = [client.uploads.parts.create(upload.id, data=data).id for data in (b"first ", b"second")]
file = client.uploads.complete(upload.id, part_ids=parts).file
print(file.filename, file.bytes, client.files.content(file.id).text)
client.files.delete(file.id)

lines = [
    {
        "custom_id": name,
        "method": "POST",
        "url": "/v1/moderations",
        "body": {"model": os.environ["GATEWAY_MODERATION_MODEL"], "input": text},
    }
    for name, text in {"one": "a cat", "two": "a dog"}.items()
]
source = client.files.create(
    file=("lines.jsonl", "\n".join(map(json.dumps, lines)).encode()), purpose="batch"
)
batch = client.batches.create(
    input_file_id=source.id, endpoint="/v1/moderations", completion_window="24h"
)
while batch.status in ("validating", "in_progress", "finalizing"):
    time.sleep(1)
    batch = client.batches.retrieve(batch.id)
print(batch.status, batch.request_counts.completed, "of", batch.request_counts.total)
for line in client.files.content(batch.output_file_id).text.splitlines():
    result = json.loads(line)
    flagged = result["response"]["body"]["results"][0]["flagged"]
    print(result["custom_id"], "flagged" if flagged else "not flagged")
