"""Create a task, wait for its end and download the video."""

import os
import sys
import time
import uuid

import requests

URL = f"{os.environ['GATEWAY_BASE_URL']}/api/v1/{os.environ['GATEWAY_SERVICE']}/reference_to_video"
session = requests.Session()
session.headers["Authorization"] = f"Bearer {os.environ['GATEWAY_API_KEY']}"


def call(method, url, **options):
    """Send a request; again after a failure that may pass."""
    for delay in (1, 2, 4, 8, 16, None):
        try:
            response = session.request(method, url, timeout=60, **options)
        except (requests.ConnectionError, requests.Timeout):
            if delay is None:
                raise
        else:
            final = response.headers.get("x-should-retry") == "false"
            if response.status_code not in (429, 500, 502, 503, 504) or final or delay is None:
                return response
            delay = float(response.headers.get("Retry-After", delay))
        time.sleep(delay)


# made once for each task and kept with it: a repeated create returns the same task
idempotency_key = str(uuid.uuid4())
body = {
    "model": os.environ["GATEWAY_MODEL"],
    "prompt": "A lighthouse at dawn",
    "reference_image_urls": ["https://example.com/lighthouse.png"],
}
response = call("POST", URL, json=body, headers={"Idempotency-Key": idempotency_key})
if response.status_code != 202:
    sys.exit(f"refused with {response.status_code}: {response.text}")
task = response.json()
print("created", task["id"])

pause = 1.0
while task["status"] == "processing":
    time.sleep(pause)
    pause = min(pause * 1.5, 15)
    response = call("GET", f"{URL}/{task['id']}")
    response.raise_for_status()
    task = response.json()

if task["status"] == "failed":
    sys.exit(f"{task['id']} failed: {task['error']}")
print("completed for", task["usage"]["cost"], "USD")

with requests.get(task["videos"][0]["url"], stream=True, timeout=60) as video:
    video.raise_for_status()
    with open("video.mp4", "wb") as file:
        for chunk in video.iter_content(65536):
            file.write(chunk)
print("video.mp4:", os.path.getsize("video.mp4"), "bytes")
