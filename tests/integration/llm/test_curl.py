"""Bytes of streams as curl gets them from real processes (contract §7.2, §7.3, §8.5, §8.6)."""

import json
import subprocess

import pytest

from tests.servers.llm_dialects import read_chat, read_google, read_google_array, read_responses

ANSWER = "You said: Hello there, gateway"
PROMPT = "Hello there, gateway"
MODELS = ["sim-chat", "sim-google"]
both = pytest.mark.parametrize("model", MODELS)
CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"


@pytest.fixture
def curl(base_url, shared_account):
    """POSTs a body as curl does; status, headers by lower-case name, and the bytes that came."""

    def run(path, body, *options, authorize=True):
        key = ["-H", f"Authorization: Bearer {shared_account[1]}"] if authorize else []
        command = ["curl", "-sN", "-D", "/dev/stderr", "--max-time", "20", base_url + path, *key]
        command += ["-H", "Content-Type: application/json", "-d", json.dumps(body), *options]
        done = subprocess.run(command, capture_output=True, timeout=30)
        assert done.returncode == 0, done
        first, *lines = done.stderr.decode().strip().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines)
        return int(first.split()[1]), headers, done.stdout

    return run


def describe_prompt(text):
    return {"contents": [{"parts": [{"text": text}]}]}


def check_stream_headers(headers):
    assert headers["content-type"] == "text/event-stream; charset=utf-8"
    assert headers["cache-control"] == "no-cache, no-transform"
    assert headers["x-accel-buffering"] == "no"
    assert "content-length" not in headers
    assert headers["x-request-id"].startswith("req_")


@both
@pytest.mark.parametrize("include_usage", [False, True])
def test_chat_stream(curl, model, include_usage):
    body = {"model": model, "stream": True, "messages": [{"role": "user", "content": PROMPT}]}
    if include_usage:
        body["stream_options"] = {"include_usage": True}
    status, headers, raw = curl(CHAT, body)
    assert status == 200
    check_stream_headers(headers)
    assert raw.endswith(b"\n\ndata: [DONE]\n\n")
    got = read_chat(raw, include_usage=include_usage)
    assert (got.text, got.error) == (ANSWER, None)
    assert (got.usage is not None) == include_usage
    assert {chunk["model"] for chunk in got.documents} == {model}


@both
def test_responses_stream(curl, model):
    status, headers, raw = curl(RESPONSES, {"model": model, "stream": True, "input": PROMPT})
    assert status == 200
    check_stream_headers(headers)
    assert b"[DONE]" not in raw
    got = read_responses(raw)
    assert (got.text, got.error, got.usage["output_tokens"]) == (ANSWER, None, 5)


@both
@pytest.mark.parametrize("version", ["v1", "v1beta"])
def test_google_stream_of_events_with_the_key_in_the_query(curl, shared_account, model, version):
    path = f"/{version}/models/{model}:streamGenerateContent?alt=sse&key={shared_account[1]}"
    status, headers, raw = curl(path, describe_prompt(PROMPT), authorize=False)
    assert status == 200
    check_stream_headers(headers)
    got = read_google(raw)
    assert (got.text, got.error) == (ANSWER, None)
    assert got.documents[-1]["candidates"][0]["finishReason"] == "STOP"
    assert got.usage["candidatesTokenCount"] == 5
    assert {chunk["modelVersion"] for chunk in got.documents} == {model}


@both
def test_google_stream_without_alt_is_a_json_array(curl, shared_account, model):
    path = f"/v1beta/models/{model}:streamGenerateContent"
    key = ["-H", f"x-goog-api-key: {shared_account[1]}"]
    status, headers, raw = curl(path, describe_prompt(PROMPT), *key, authorize=False)
    assert (status, headers["content-type"]) == (200, "application/json")
    assert read_google_array(raw).text == ANSWER


@pytest.mark.full
@both
@pytest.mark.parametrize("fault", ["error", "junk", "drop"])
def test_fault_in_mid_stream_is_the_last_frame_of_each_dialect(curl, spare_models, model, fault):
    """Frames before it are whole, though the provider's come in pieces of 7 bytes."""
    model = spare_models["openai" if model == "sim-chat" else "google"].pop()
    prompt = f"[[words=20]] [[pieces=7]] [[{fault}=6]]"
    chat = {"model": model, "stream": True, "messages": [{"role": "user", "content": prompt}]}
    native = f"/v1beta/models/{model}:streamGenerateContent"
    for path, body, read, code in (
        (CHAT, chat, read_chat, "upstream_error"),
        (RESPONSES, {"model": model, "stream": True, "input": prompt}, read_responses, None),
        (f"{native}?alt=sse", describe_prompt(prompt), read_google, 502),
        (native, describe_prompt(prompt), read_google_array, 502),
    ):
        status, _, raw = curl(path, body)
        assert status == 200
        assert b"[DONE]" not in raw
        got = read(raw)
        assert got.text.startswith("The quick")
        assert got.error["code"] == (code or "upstream_error")
        assert model not in got.error["message"]


def test_keys_that_differ_are_refused_in_the_dialect_of_the_path(curl, shared_account):
    other = "sk-" + "x" * 47
    path = f"/v1beta/models/sim-chat:generateContent?key={other}"
    status, headers, raw = curl(path, describe_prompt(PROMPT))
    error = json.loads(raw)["error"]
    assert (status, error["code"], error["status"]) == (401, 401, "UNAUTHENTICATED")
    assert headers["www-authenticate"] == "bearer"
    assert shared_account[1] not in raw.decode()
