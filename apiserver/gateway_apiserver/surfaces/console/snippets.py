"""Programs that make the same call as a page, by curl, in Python and in Node.js. Pure.

A reader may run them as they are, with the key in GATEWAY_API_KEY.
"""

import shlex
from collections.abc import Mapping
from pprint import pformat
from typing import Any

import orjson

from gateway_apiserver.surfaces.console.parts import Code

CHAT_PATH = "/v1/chat/completions"
_WIDTH = 88


def show_chat(base_url: str, model: str, message: str) -> list[Code]:
    """Return a chat that streams, in Python and Node.js with the OpenAI SDK."""
    body = {"model": model, "messages": [{"role": "user", "content": message}], "stream": True}
    url, model_text, message_text = map(_quote, (f"{base_url}/v1", model, message))
    python = f"""import os

from openai import OpenAI

client = OpenAI(base_url={url}, api_key=os.environ["GATEWAY_API_KEY"])
stream = client.chat.completions.create(
    model={model_text},
    messages=[{{"role": "user", "content": {message_text}}}],
    stream=True,
)
for chunk in stream:
    if chunk.choices:
        print(chunk.choices[0].delta.content or "", end="", flush=True)
"""
    node = f"""import OpenAI from "openai";

const client = new OpenAI({{ baseURL: {url}, apiKey: process.env.GATEWAY_API_KEY }});
const stream = await client.chat.completions.create({{
  model: {model_text},
  messages: [{{ role: "user", content: {message_text} }}],
  stream: true,
}});
for await (const chunk of stream) {{
  process.stdout.write(chunk.choices[0]?.delta.content ?? "");
}}
"""
    return _title("chat", show_curl(base_url + CHAT_PATH, body, "-N"), python, node)


def show_task(url: str, body: Mapping[str, Any]) -> list[Code]:
    """Return a task that is made at this address, and polled until it has ended."""
    python = f"""import os
import time
import uuid

import requests

url = {_quote(url)}
session = requests.Session()
session.headers["Authorization"] = f"Bearer {{os.environ['GATEWAY_API_KEY']}}"
body = {pformat(dict(body), sort_dicts=False, width=_WIDTH)}


def call(method, address, **options):
    response = session.request(method, address, timeout=60, **options)
    response.raise_for_status()
    return response.json()


# keep the key with the task: a repeated create returns the same task
task = call("POST", url, json=body, headers={{"Idempotency-Key": str(uuid.uuid4())}})
while task["status"] == "processing":
    time.sleep(2)
    task = call("GET", f"{{url}}/{{task['id']}}")
print(task)
"""
    node = f"""import {{ randomUUID }} from "node:crypto";
import {{ setTimeout as sleep }} from "node:timers/promises";

const url = {_quote(url)};
const body = {_indent(body)};

async function call(address, method = "GET", more = {{}}, content = undefined) {{
  const headers = {{ Authorization: `Bearer ${{process.env.GATEWAY_API_KEY}}`, ...more }};
  const response = await fetch(address, {{ method, headers, body: content }});
  if (!response.ok) throw new Error(`${{response.status}}: ${{await response.text()}}`);
  return response.json();
}}

// keep the key with the task: a repeated create returns the same task
const headers = {{ "Content-Type": "application/json", "Idempotency-Key": randomUUID() }};
let task = await call(url, "POST", headers, JSON.stringify(body));
while (task.status === "processing") {{
  await sleep(2000);
  task = await call(`${{url}}/${{task.id}}`);
}}
console.log(task);
"""
    return _title("task", show_curl(url, body), python, node)


def show_curl(url: str, body: Mapping[str, Any], *options: str) -> str:
    """Return a POST of a JSON body, for a shell."""
    return (
        f"{shlex.join(('curl', *options, url))} \\\n"
        '  -H "Authorization: Bearer $GATEWAY_API_KEY" \\\n'
        "  -H 'Content-Type: application/json' \\\n"
        f"  -d {shlex.quote(_indent(body))}"
    )


def _title(noun: str, *texts: str) -> list[Code]:
    titles = (f"The same {noun} {how}" for how in ("with curl", "in Python", "in Node.js"))
    return [Code(title, text) for title, text in zip(titles, texts, strict=True)]


def _quote(text: str) -> str:
    # a JSON string is a string of Python and JavaScript too
    return orjson.dumps(text).decode()


def _indent(body: Mapping[str, Any]) -> str:
    return orjson.dumps(body, option=orjson.OPT_INDENT_2).decode()
