"""Every field of a create at and over its bounds (contract §2.1, the specification's table)."""

import json

import pytest
import yaml

GOOD = {
    "prompt of 1": {"prompt": "a"},
    "prompt of 20000": {"prompt": "a" * 20_000},
    "prompt of 20000 code points of four bytes": {"prompt": "\U0001f600" * 20_000},
    "prompt with control characters": {"prompt": "a\u0000\n\u007f\u2028"},
    "1 image": {"reference_image_urls": ["http://example.com/a"]},
    "15 images": {"reference_image_urls": [f"https://example.com/{n}" for n in range(15)]},
    "an image twice": {"reference_image_urls": ["https://example.com/a"] * 2},
    "an image URL of 2048": {
        "reference_image_urls": [
            "https://example.com/" + "a" * (2048 - len("https://example.com/"))
        ]
    },
    "an image URL of any type": {"reference_image_urls": ["https://example.com/a.exe?b=c#d"]},
    "an image URL with a scheme in capitals": {"reference_image_urls": ["HTTPS://EXAMPLE.COM/a"]},
    "0 audio clips": {"reference_audio_urls": []},
    "3 audio clips": {"reference_audio_urls": [f"https://example.com/{n}.mp3" for n in range(3)]},
    **{
        f"aspect ratio {value}": {"aspect_ratio": value}
        for value in ("16:9", "9:16", "1:1", "4:3", "3:4")
    },
    "with audio": {"audio": True},
    "without audio": {"audio": False},
    "3 seconds": {"duration_seconds": 3},
    "16 seconds": {"duration_seconds": 16},
    "5.0 seconds": {"duration_seconds": 5.0},
    **{
        f"resolution {value}": {"output_resolution": value}
        for value in ("540p", "720p", "1080p", "2k", "4k")
    },
    "callback to a name": {"callback_url": "https://example.com/hook?x=1"},
    "callback to a public address": {"callback_url": "http://93.184.216.34:8080/hook"},
    "callback where the deployment allows it": {"callback_url": "http://127.0.0.1:9/hook"},
    "callback with a scheme in capitals": {"callback_url": "HTTP://example.com/hook"},
}


@pytest.mark.parametrize("case", GOOD)
async def test_is_taken(shared, case):
    answer = await shared.create(**GOOD[case])
    assert answer.status == 202, answer.raw


LONG_URL = "https://example.com/" + "a" * (2049 - len("https://example.com/"))
URLS = {
    "relative": "/a.png",
    "without a scheme": "example.com/a.png",
    "of another scheme": "ftp://example.com/a.png",
    "of a file": "file:///etc/passwd",
    "with data": "data:image/png;base64,AAAA",
    "without a host": "https:///a.png",
    "with a user": "https://user@example.com/a.png",
    "with a password": "https://user:secret@example.com/a.png",
    "with an empty user": "https://@example.com/a.png",
    "of 2049": LONG_URL,
    "empty": "",
    "with a space": "https://example.com/a b",
    "with a line break": "https://example.com/a\nb",
    "with a control character": "https://example.com/a\u009bb",
    "of no string": 5,
    "null": None,
    "of an array": ["https://example.com/a"],
}
BAD = {
    **{
        f"model {what}": ("model", value)
        for what, value in {
            "unknown": "no-such-model",
            "empty": "",
            "of no string": 5,
            "in other case": "SIM-Q4-REFERENCE-TO-VIDEO",
        }.items()
    },
    **{
        f"prompt {what}": ("prompt", value)
        for what, value in {
            "empty": "",
            "of blanks": " \t\n\u00a0\u3000",
            "of 20001": "a" * 20_001,
            "of 20001 code points": "\U0001f600" * 20_001,
            "of no string": 5,
            "of an array": ["a"],
        }.items()
    },
    **{
        f"images {what}": ("reference_image_urls", value)
        for what, value in {
            "none": [],
            "16": [f"https://example.com/{n}" for n in range(16)],
            "of no array": "https://example.com/a.png",
            "of an object": {"0": "https://example.com/a.png"},
        }.items()
    },
    **{f"image URL {what}": ("reference_image_urls", [value]) for what, value in URLS.items()},
    "4 audio clips": ("reference_audio_urls", [f"https://example.com/{n}" for n in range(4)]),
    "audio clips of no array": ("reference_audio_urls", "https://example.com/a.mp3"),
    **{f"audio URL {what}": ("reference_audio_urls", [value]) for what, value in URLS.items()},
    **{
        f"aspect ratio {value!r}": ("aspect_ratio", value)
        for value in ("16:10", "", "16:9 ", 1, ["16:9"])
    },
    **{f"audio {value!r}": ("audio", value) for value in (0, 1, "true", "", [], 1.0)},
    **{
        f"duration {value!r}": ("duration_seconds", value)
        for value in (2, 17, 0, -5, "5", 5.5, True, [5], 10**30, 1e300, -(2**63))
    },
    **{
        f"resolution {value!r}": ("output_resolution", value)
        for value in ("720", "720P", "8k", "", 720)
    },
    **{
        f"callback URL {what}": ("callback_url", value)
        for what, value in URLS.items()
        if value is not None
    },
    **{
        f"callback to {url}": ("callback_url", url)
        for url in (
            "http://10.0.0.1/",
            "https://172.16.5.5:8443/hook",
            "http://192.168.1.1/",
            "http://169.254.169.254/latest/meta-data/",
            "http://100.64.0.1/",
            "http://0.0.0.0/",
            "http://224.0.0.1/",
            "http://[fd00::1]/",
            "http://[fe80::1]/",
            "http://[::]/",
            "http://[::ffff:10.0.0.1]/",
            "http://[64:ff9b::a00:1]/",
            "http://0x0a000001/",
            "http://167772161/",
            "http://012.0.0.1/",
            "http://10.1/",
            "http://10.0.0.1./",
        )
    },
}


@pytest.mark.parametrize("case", BAD)
async def test_is_refused_under_its_name(shared, case):
    name, value = BAD[case]
    body = {**shared.body(), name: value}
    answer = await shared.request("POST", shared.tasks_path, body=body)
    assert answer.status == 400, answer.raw
    assert set(answer.body) == {"error", "errors"}
    assert set(answer.body["errors"]) == {name}
    texts = answer.body["errors"][name]
    assert texts
    assert all(isinstance(text, str) and text for text in (answer.body["error"], *texts))


@pytest.mark.parametrize("number", ["1e400", "-1E9999", "9" * 400, "9" * 4000], ids=len)
@pytest.mark.parametrize(
    "name", ["duration_seconds", "prompt", "audio", "reference_image_urls", "seed"]
)
async def test_a_number_beyond_a_double_is_refused_under_its_name(shared, name, number):
    raw = json.dumps({**shared.body(), name: "NUMBER"}).replace('"NUMBER"', number).encode()
    headers = {"Content-Type": "application/json"}
    answer = await shared.request("POST", shared.tasks_path, data=raw, headers=headers)
    assert answer.status == 400, answer.raw
    assert set(answer.body["errors"]) == {name}
    quoted = await shared.request(
        "POST",
        "/api/v1/price_quotes",
        data=b'{"service":"%s","action":"reference_to_video","params":%s}'
        % (shared.service.encode(), raw),
        headers=headers,
    )
    assert quoted.status == 400, quoted.raw
    assert quoted.body["errors"] == answer.body["errors"]


async def test_a_number_beyond_a_double_in_a_temporary_file_is_refused_under_its_name(shared):
    headers = {"Content-Type": "application/json"}
    for path, raw, name in (
        ("", b'{"source":1e400}', "source"),
        ("", b'{"source":{"type":"url","url":"http://a.example/"},"file_name":1e400}', "file_name"),
        ("/prepare", b'{"filename":"a","byte_size":1e400,"checksum":"x"}', "byte_size"),
    ):
        answer = await shared.request("POST", "/api/v1/files" + path, data=raw, headers=headers)
        assert answer.status == 400, answer.raw
        assert name in answer.body["errors"], answer.body


@pytest.mark.parametrize("name", ["model", "prompt", "reference_image_urls"])
@pytest.mark.parametrize("null", [False, True], ids=["absent", "null"])
async def test_required_field_is_asked_for(shared, name, null):
    body = {key: value for key, value in shared.body().items() if key != name}
    if null:
        body[name] = None
    answer = await shared.request("POST", shared.tasks_path, body=body)
    assert answer.status == 400
    assert set(answer.body["errors"]) == {name}


async def test_null_counts_as_absent_where_a_field_is_optional(shared):
    optional = (
        "reference_audio_urls",
        "aspect_ratio",
        "audio",
        "duration_seconds",
        "output_resolution",
        "callback_url",
    )
    headers = {"Idempotency-Key": "nulls"}
    body = {**shared.body(), **dict.fromkeys(optional)}
    first = await shared.request("POST", shared.tasks_path, headers=headers, body=body)
    assert first.status == 202, first.raw
    again = await shared.create(idempotency_key="nulls")
    assert (again.status, again.body["id"]) == (202, first.body["id"])


async def test_item_of_an_array_is_named_by_its_index(shared):
    urls = ["https://example.com/a", "ftp://example.com/b", 3]
    answer = await shared.create(reference_image_urls=urls)
    texts = answer.body["errors"]["reference_image_urls"]
    assert [text.partition(" ")[0] for text in texts] == ["[1]", "[2]"]


async def test_all_problems_are_told_at_once(shared):
    answer = await shared.create(
        prompt=" ", duration_seconds=99, audio="yes", colour="red", Model="x"
    )
    assert answer.status == 400
    assert set(answer.body["errors"]) == {
        *("prompt", "duration_seconds", "audio", "colour", "Model")
    }


@pytest.mark.parametrize("name", ["seed", "", "PROMPT", "prompt ", "a.b", "\U0001f600", "id"])
async def test_unknown_field_is_refused_under_its_name(shared, name):
    answer = await shared.create(**{name: 1})
    assert answer.status == 400
    assert set(answer.body["errors"]) == {name}


async def test_unknown_field_of_null_is_refused_too(shared):
    body = {**shared.body(), "colour": None}
    answer = await shared.request("POST", shared.tasks_path, body=body)
    assert answer.status == 400
    assert set(answer.body["errors"]) == {"colour"}


async def test_request_is_recorded_as_it_was_sent(shared):
    sent = {
        "prompt": "Ein Leuchtturm, 灯台 \U0001f600",
        "reference_audio_urls": ["https://example.com/a.mp3"],
        "aspect_ratio": "3:4",
        "audio": False,
        "duration_seconds": 3,
        "output_resolution": "540p",
        "callback_url": "https://example.com/hook",
    }
    task = (await shared.create(**sent)).body["id"]
    request = shared.world.read("gatewaytask", task.replace("_", "-", 1))["spec"]["request"]
    assert request["callbackUrl"] == sent.pop("callback_url")
    assert request["modelId"] == shared.world.env["GATEWAY_MODEL"]
    urls = shared.body()["reference_image_urls"]
    assert json.loads(request["input"]) == {**sent, "reference_image_urls": urls}


async def test_defaults_are_those_of_the_operation(shared):
    task = (await shared.create()).body["id"]
    request = shared.world.read("gatewaytask", task.replace("_", "-", 1))["spec"]["request"]
    given = {name: value for name, value in shared.body().items() if name != "model"}
    assert json.loads(request["input"]) == {
        **given,
        "aspect_ratio": "16:9",
        "audio": True,
        "duration_seconds": 5,
        "output_resolution": "720p",
    }
    assert "callbackUrl" not in request


async def test_integer_with_a_zero_fraction_is_the_integer(shared):
    task = (await shared.create(duration_seconds=5.0)).body["id"]
    request = shared.world.read("gatewaytask", task.replace("_", "-", 1))["spec"]["request"]
    assert '"duration_seconds":5,' in request["input"]


async def test_prompt_of_any_characters_can_be_shown_with_kubectl(shared):
    prompt = "".join(map(chr, (*range(0x180), 0x2028, 0xFEFF, 0xFFFD, 0xFFFE, 0xFFFF, 0x1FFFF)))
    task = (await shared.create(prompt=prompt)).body["id"]
    name = task.replace("_", "-", 1)
    request = shared.world.read("gatewaytask", name)["spec"]["request"]
    assert json.loads(request["input"])["prompt"] == prompt
    shown = shared.world.run.kubectl("get", "gatewaytask", name, "-o", "yaml")
    assert json.loads(yaml.safe_load(shown)["spec"]["request"]["input"])["prompt"] == prompt
