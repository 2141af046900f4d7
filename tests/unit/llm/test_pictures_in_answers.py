"""Pictures that models draw, in the answers to clients of each dialect, and in their next turns."""

from typing import Any

import orjson
import pytest

from gateway_core.llm.formats.calls import Format
from tests.fakes.llm_calls import USER, exchange, translate
from tests.fakes.llm_streams import chat_chunks, google_chunks, run_stream, write_frames
from tests.llm_cases.view import read_answer

C, R, G = Format.CHAT, Format.RESPONSES, Format.GOOGLE
CLIENTS = (C, R, G)
DATA = "iVBORw=="
URL = f"data:image/png;base64,{DATA}"
WEB = "https://pictures.example/a.png"
IMAGE = {"type": "image_url", "image_url": {"url": URL}}
PART = {"inlineData": {"mimeType": "image/png", "data": DATA}}


def answer(client: Format, upstream: Format, delta: dict[str, Any], *, stream: bool) -> list[Any]:
    """The documents that a client gets of an answer with such a message, or content."""
    planned = exchange(client, upstream, stream=stream)
    if upstream is C:
        first, last, usage = chat_chunks()
        last["choices"][0]["finish_reason"] = "stop"
        drawn = first | {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
        wire = write_frames([first, drawn, last, usage, b"[DONE]"])
        choice = {"index": 0, "message": {"role": "assistant", **delta}, "finish_reason": "stop"}
        whole = first | {"object": "chat.completion", "choices": [choice], "usage": usage["usage"]}
    else:
        [whole] = google_chunks("")
        whole["candidates"][0]["content"] |= delta
        wire = write_frames([whole])
    raw = run_stream(planned.open_stream(), [wire]) if stream else b""
    if not stream:
        raw = orjson.dumps(planned.complete(orjson.dumps(whole))[0])
    # the models of the SDKs read it
    read_answer(client, raw, stream=stream)
    lines = raw.split(b"\n") if stream else [b"data: " + raw]
    data = (line.removeprefix(b"data: ") for line in lines if line.startswith(b"data: {"))
    return [orjson.loads(each) for each in data]


def list_pictures(client: Format, documents: list[Any], *, stream: bool) -> list[str]:
    """The pictures in an answer as URLs."""
    if client is C:
        messages = [c["delta" if stream else "message"] for d in documents for c in d["choices"]]
        return [i["image_url"]["url"] for each in messages for i in each.get("images", ())]
    if client is R:
        response = documents[-1]["response"] if stream else documents[0]
        items = [each for each in response["output"] if each["type"] == "image_generation_call"]
        assert all(each["status"] == "completed" for each in items)
        if stream:
            done = [e["item"] for e in documents if e["type"] == "response.output_item.done"]
            assert done == response["output"]
        return [f"data:image/{each['output_format']};base64,{each['result']}" for each in items]
    parts = [p for d in documents for c in d["candidates"] for p in c["content"]["parts"]]
    blobs = [part["inlineData"] for part in parts if "inlineData" in part]
    return [f"data:{each['mimeType']};base64,{each['data']}" for each in blobs]


DRAWN = [
    (C, {"content": "See", "images": [IMAGE]}),
    (C, {"content": None, "images": [{**IMAGE, "index": 0}]}),
    (C, {"content": [{"type": "text", "text": "See"}, IMAGE]}),
    (C, {"images": IMAGE}),
    (C, {"images": [URL]}),
    (C, {"images": [{"b64_json": DATA}]}),
    (C, {"images": [{"url": URL}]}),
    (G, {"parts": [{"text": "See"}, PART]}),
    (G, {"parts": [PART, {"text": "See"}]}),
    (G, {"parts": [{**PART, "thoughtSignature": "c2ln"}]}),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("client", [C, R])
def test_media_type_of_a_picture_may_be_in_capitals(client: Format, stream: bool) -> None:
    content = {"parts": [{"inlineData": {"mimeType": "IMAGE/PNG", "data": DATA}}]}
    documents = answer(client, G, content, stream=stream)
    assert list_pictures(client, documents, stream=stream) == [URL]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("upstream", "delta"), DRAWN)
@pytest.mark.parametrize("client", CLIENTS)
def test_picture_of_a_model_reaches_the_client(
    client: Format, upstream: Format, delta: dict[str, Any], stream: bool
) -> None:
    documents = answer(client, upstream, delta, stream=stream)
    if client is upstream and "images" in delta:
        # passed on as it is
        assert orjson.dumps(delta["images"]) in orjson.dumps(documents)
    else:
        assert list_pictures(client, documents, stream=stream) == [URL]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("upstream", "delta"),
    [
        (C, {"content": "See", "images": [{"type": "image_url", "image_url": {"url": WEB}}]}),
        (G, {"parts": [{"fileData": {"mimeType": "image/png", "fileUri": WEB}}]}),
    ],
)
@pytest.mark.parametrize("client", CLIENTS)
def test_address_of_a_picture_reaches_the_client(
    client: Format, upstream: Format, delta: dict[str, Any], stream: bool
) -> None:
    assert WEB.encode() in orjson.dumps(answer(client, upstream, delta, stream=stream))


@pytest.mark.parametrize(("client", "kept"), [(C, 0), (R, 2 * len(DATA))])
def test_pictures_that_a_stream_keeps_count_as_its_memory(client: Format, kept: int) -> None:
    [chunk] = google_chunks("")
    chunk["candidates"][0] = {"content": {"role": "model", "parts": [PART]}, "index": 0}
    stream = exchange(client, G, stream=True).open_stream()
    stream.feed(write_frames([chunk, chunk]))
    assert stream.waiting_bytes == kept


@pytest.mark.parametrize("client", [C, R])
def test_picture_of_a_thought_is_left_out(client: Format) -> None:
    documents = answer(client, G, {"parts": [{**PART, "thought": True}]}, stream=False)
    assert list_pictures(client, documents, stream=False) == []


@pytest.mark.parametrize("upstream", [C, G])
def test_picture_of_an_answer_goes_back_in_the_next_turn(upstream: Format) -> None:
    message = answer(C, G, {"parts": [{"text": "See"}, PART]}, stream=False)[0]["choices"][0]
    items = answer(R, G, {"parts": [{"text": "See"}, PART]}, stream=False)[0]["output"]
    jpeg = {"type": "image_generation_call", "id": "i", "result": DATA, "output_format": "jpeg"}
    assert DATA in str(translate(C, upstream, messages=[USER, message["message"], USER]))
    assert DATA in str(translate(R, upstream, input=[USER, *items, USER]))
    assert "image/jpeg" in str(translate(R, upstream, input=[USER, jpeg, USER]))


def test_picture_of_an_earlier_turn_reaches_chat_in_a_message_of_the_user() -> None:
    drawn = {"role": "assistant", "content": "See", "images": [IMAGE, URL]}
    shown = [
        {"role": "assistant", "content": "See"},
        {"role": "user", "content": [IMAGE, IMAGE]},
    ]
    body = translate(C, C, messages=[USER, drawn, USER])
    assert body["messages"] == [USER, *shown, USER]
    # the provider says what is wrong with it
    assert translate(C, C, messages=[drawn, 3])["messages"] == [*shown, 3]
    message = {"role": "assistant", "content": "See", "images": []}
    assert translate(C, C, messages=[message])["messages"] == [message]


@pytest.mark.parametrize("upstream", [C, G])
@pytest.mark.parametrize("images", [[IMAGE], [URL], URL, [{"url": URL}], [{"b64_json": DATA}]])
def test_picture_of_an_earlier_turn_may_have_each_form_of_an_answer(
    upstream: Format, images: Any
) -> None:
    drawn = {"role": "assistant", "content": "See", "images": images}
    usual = {**drawn, "images": [IMAGE]}
    sent = translate(C, upstream, messages=[USER, drawn, USER])
    assert DATA in str(sent)
    assert sent == translate(C, upstream, messages=[USER, usual, USER])


def test_pictures_may_be_asked_for() -> None:
    picture = {"aspect_ratio": "16:9", "image_size": "2K"}
    body = translate(C, G, modalities=["image", "text"], image_config=picture)
    assert body["generationConfig"] == {
        "responseModalities": ["IMAGE", "TEXT"],
        "imageConfig": {"aspectRatio": "16:9", "imageSize": "2K"},
    }
    asked = translate(G, C, generationConfig={"responseModalities": ["TEXT", "IMAGE"]})
    assert asked["modalities"] == ["text", "image"]


@pytest.mark.parametrize("upstream", [C, G])
@pytest.mark.parametrize("result", [None, ""])
def test_picture_that_was_not_made_is_left_out_of_the_next_turn(
    upstream: Format, result: str | None
) -> None:
    item = {"type": "image_generation_call", "id": "i", "status": "failed", "result": result}
    assert translate(R, upstream, input=[USER, item]) == translate(R, upstream, input=[USER])
