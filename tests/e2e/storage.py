"""A user of files, Uploads and batches, with nothing but gatewayctl and a key.

Runs alone in a pod of the cluster, on the gateway's own image. A File goes up and comes down, an
Upload goes up in parts, and a batch goes from a file here to its results; pods are killed
meanwhile, so a command that ends with 5 (not now) is given again, as its documentation tells users
to. The summary is the last line of its output.
"""

import collections
import hashlib
import json
import os
import subprocess
import sys
import time
import uuid
from pathlib import Path

FOLDER = Path("/tmp/work")
LINES = int(os.environ["STORAGE_LINES"])
PATIENCE = 120.0


def ctl(*arguments):
    """The document that a command prints; 5 has it given again."""
    deadline = time.monotonic() + PATIENCE
    while True:
        command = ["gatewayctl", *map(str, arguments), "--output=json"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return json.loads(done.stdout)
        if done.returncode not in (3, 5) or time.monotonic() > deadline:
            sys.exit(f"{' '.join(command[:4])} ends with {done.returncode}: {done.stderr[-2000:]}")
        time.sleep(1.0)


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def try_file(name, size, *words):
    """A file of `size` bytes up and down again; the File's id."""
    source, back = FOLDER / name, FOLDER / f"{name}.back"
    source.write_bytes(os.urandom(size))
    file = ctl(*words, source)
    assert file["bytes"] == size, file
    ctl("files", "download", file["id"], f"--to={back}", "--force")
    assert digest(back) == digest(source), f"{name} came back as something else"
    assert file["id"] in {each["id"] for each in ctl("files", "list")["items"]}
    return file["id"]


def run_batch():
    """A batch of LINES lines to its end; its counts."""
    source = FOLDER / "requests.jsonl"
    with source.open("w") as file:
        for number in range(LINES):
            text = f"line {number} {'an attack' if number % 10 == 0 else 'a cat'}"
            body = {"model": "sim-moderation", "input": text}
            line = {"custom_id": str(number), "method": "POST", "url": "/v1/moderations"}
            file.write(json.dumps({**line, "body": body}) + "\n")
    # the same batch, should the command be given again
    made = ctl("batches", "create", source, f"--idempotency-key={uuid.uuid4()}")
    print(f"running {made['id']}", flush=True)
    ended = ctl("batches", "wait", made["id"], f"--timeout={PATIENCE:.0f}s")
    results = FOLDER / "results"
    found = ctl("batches", "download", made["id"], f"--to={results}")
    (path,) = map(Path, found["files"])
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    order = [line["custom_id"] for line in lines]
    assert order == [str(number) for number in range(LINES)], collections.Counter(order)
    for number, line in enumerate(lines):
        (result,) = line["response"]["body"]["results"]
        assert result["flagged"] is (number % 10 == 0), line
    return ended["request_counts"]


def main():
    FOLDER.mkdir()
    small = try_file("small.bin", 1_000_000, "files", "upload")
    try_file("large.bin", 20_000_000, "uploads", "send")
    ctl("files", "delete", small, "--yes")
    assert small not in {each["id"] for each in ctl("files", "list")["items"]}
    counts = run_batch()
    print(json.dumps({"counts": counts}), flush=True)


if __name__ == "__main__":
    main()
