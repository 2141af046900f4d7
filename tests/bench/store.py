"""Bytes through the adapter of the S3 store over plain boto3 with the same bytes and server."""

import asyncio
import statistics
import time
from collections.abc import AsyncIterator

from tests.bench.report import Report
from tests.servers.s3 import S3Server, open_bucket
from tests.servers.world import World

MIB = 2**20
SIZE = 125 * MIB
PART = 5 * MIB
SMALL = 16 * 1024
SMALL_COUNT = 300
ROUNDS = 5


async def measure_store(world: World, key: str, report: Report) -> None:
    """Large objects streamed both ways, and small ones put and got one after the other."""
    block = bytes(range(256)) * 1024

    async def flow() -> AsyncIterator[bytes]:
        for _ in range(SIZE // len(block)):
            yield block

    with S3Server() as server, open_bucket(server, prefix="bench") as store:
        plain, bucket = server.client(), server.bucket

        def put_plainly() -> None:
            """As the adapter does: parts of 5 MiB, one after the other."""
            begun = plain.create_multipart_upload(Bucket=bucket, Key="plain")["UploadId"]
            parts = []
            for number in range(1, SIZE // PART + 1):
                body = block * (PART // len(block))
                sent = plain.upload_part(
                    Bucket=bucket, Key="plain", UploadId=begun, PartNumber=number, Body=body
                )
                parts.append({"PartNumber": number, "ETag": sent["ETag"]})
            plain.complete_multipart_upload(
                Bucket=bucket, Key="plain", UploadId=begun, MultipartUpload={"Parts": parts}
            )

        def get_plainly() -> None:
            body = plain.get_object(Bucket=bucket, Key="plain")["Body"]
            assert sum(len(chunk) for chunk in body.iter_chunks(MIB)) == SIZE

        async def get() -> None:
            size = 0
            async for chunk in store.stream("ours"):
                size += len(chunk)
            assert size == SIZE

        def put_small_plainly() -> None:
            for number in range(SMALL_COUNT):
                plain.put_object(Bucket=bucket, Key=f"plain-{number}", Body=block[:SMALL])
                plain.get_object(Bucket=bucket, Key=f"plain-{number}")["Body"].read()

        async def put_small() -> None:
            for number in range(SMALL_COUNT):
                await store.put(f"small/{number}", block[:SMALL])
                await store.get(f"small/{number}")

        steps = {
            "put, streamed": (
                lambda: store.put_stream("ours", flow(), max_bytes=SIZE),
                put_plainly,
            ),
            "get, streamed": (get, get_plainly),
            "small put and get": (put_small, put_small_plainly),
        }
        for name, (ours, plainly) in steps.items():
            ratios, rates = [], []
            for _ in range(ROUNDS):
                begin = time.perf_counter()
                await asyncio.to_thread(plainly)
                middle = time.perf_counter()
                await ours()
                end = time.perf_counter()
                ratios.append((middle - begin) / (end - middle))
                rates.append(SIZE / MIB / (end - middle))
            report.add(f"S3 store, {name}, over plain boto3", statistics.median(ratios), "ratio")
            if "streamed" in name:
                report.add(f"S3 store, {name}", statistics.median(rates), "MiB/s")
