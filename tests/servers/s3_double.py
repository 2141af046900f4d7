"""An S3 server in this process, for what must not need the real one; ports verify it as that."""

import hashlib
import itertools
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from urllib.parse import quote
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from aiohttp import web

from tests.servers.s3 import S3Server
from tests.servers.server import WebServer

NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"


@dataclass
class Stored:
    """An object; a put replaces it."""

    data: bytes
    metadata: dict[str, str] = field(default_factory=dict)
    time: datetime = field(default_factory=lambda: datetime.now(UTC))

    @property
    def etag(self) -> str:
        return f'"{hashlib.md5(self.data, usedforsecurity=False).hexdigest()}"'


@dataclass
class Upload:
    """A multipart upload that is neither completed nor aborted."""

    key: str
    metadata: dict[str, str]
    parts: dict[int, bytes] = field(default_factory=dict)
    time: datetime = field(default_factory=lambda: datetime.now(UTC))


class S3Refusal(Exception):
    """A refusal with its status and code."""

    def __init__(self, status: int, code: str) -> None:
        super().__init__(code)
        self.status = status
        self.code = code


class S3Double(WebServer):
    """Objects and multipart uploads of one bucket in memory; it knows one key id, no signatures."""

    bucket = S3Server.bucket
    credentials = S3Server.credentials
    settings = S3Server.settings
    client = S3Server.client
    list_names = S3Server.list_names
    list_uploads = S3Server.list_uploads
    empty = S3Server.empty

    def __init__(self) -> None:
        super().__init__()
        self.access_key = "test" + secrets.token_hex(8)
        self.secret_key = secrets.token_hex(20)
        self._objects: dict[str, Stored] = {}
        self._uploads: dict[str, Upload] = {}
        self._numbers = itertools.count(1)

    def build(self) -> web.Application:
        """The application."""
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_route("*", "/{bucket}/{key:.*}", self._answer)
        app.router.add_route("*", "/{bucket}", self._answer)
        return app

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        try:
            self._check(request)
            return self._handle(request, request.match_info.get("key", ""), await request.read())
        except S3Refusal as refusal:
            if request.method == "HEAD":
                return web.Response(status=refusal.status)
            return answer_xml("Error", f"<Code>{refusal.code}</Code>", status=refusal.status)

    def _check(self, request: web.Request) -> None:
        if f"Credential={self.access_key}/" not in request.headers.get("Authorization", ""):
            raise S3Refusal(403, "InvalidAccessKeyId")
        if request.match_info["bucket"] != self.bucket:
            raise S3Refusal(404, "NoSuchBucket")

    def _handle(self, request: web.Request, key: str, body: bytes) -> web.Response:
        query = request.query
        match request.method:
            case "GET" if not key and "uploads" in query:
                return self._list_uploads(query.get("prefix", ""))
            case "GET" if not key:
                return self._list_objects(query)
            case "HEAD" if not key:
                return web.Response()
            case "GET" | "HEAD":
                return self._read(request, key)
            case "POST" if "delete" in query:
                for name in find_texts(body, "Key"):
                    self._objects.pop(name, None)
                return answer_xml("DeleteResult", "")
            case "POST" if "uploads" in query:
                upload_id = f"upload-{next(self._numbers)}"
                self._uploads[upload_id] = Upload(key, read_metadata(request))
                text = f"<Key>{escape(key)}</Key><UploadId>{upload_id}</UploadId>"
                return answer_xml("InitiateMultipartUploadResult", text)
            case "POST":
                return self._complete(query["uploadId"], body)
            case "PUT" if "uploadId" in query:
                self._find_upload(query["uploadId"]).parts[int(query["partNumber"])] = body
                return web.Response(headers={"ETag": Stored(body).etag})
            case "PUT":
                self._objects[key] = stored = Stored(body, read_metadata(request))
                return web.Response(headers={"ETag": stored.etag})
            case "DELETE" if "uploadId" in query:
                self._find_upload(query["uploadId"])
                del self._uploads[query["uploadId"]]
                return web.Response(status=204)
            case "DELETE":
                self._objects.pop(key, None)
                return web.Response(status=204)
        raise S3Refusal(405, "MethodNotAllowed")

    def _find_upload(self, upload_id: str) -> Upload:
        if upload_id not in self._uploads:
            raise S3Refusal(404, "NoSuchUpload")
        return self._uploads[upload_id]

    def _complete(self, upload_id: str, body: bytes) -> web.Response:
        upload = self._find_upload(upload_id)
        numbers = [int(number) for number in find_texts(body, "PartNumber")]
        if numbers != sorted(upload.parts):
            raise S3Refusal(400, "InvalidPart")
        data = b"".join(upload.parts[number] for number in numbers)
        stored = Stored(data, upload.metadata)
        self._objects[upload.key] = stored
        del self._uploads[upload_id]
        text = f"<Key>{escape(upload.key)}</Key><ETag>{escape(stored.etag)}</ETag>"
        return answer_xml("CompleteMultipartUploadResult", text)

    def _read(self, request: web.Request, key: str) -> web.Response:
        stored = self._objects.get(key)
        if stored is None:
            raise S3Refusal(404, "NoSuchKey")
        if request.headers.get("If-Match", stored.etag) != stored.etag:
            raise S3Refusal(412, "PreconditionFailed")
        headers = {"ETag": stored.etag, **stored.metadata}
        if "Range" not in request.headers:
            return web.Response(body=stored.data, headers=headers)
        begin, _, end = request.headers["Range"].removeprefix("bytes=").partition("-")
        if int(begin) >= len(stored.data):
            raise S3Refusal(416, "InvalidRange")
        part = stored.data[int(begin) : int(end) + 1 if end else None]
        last = int(begin) + len(part) - 1
        headers["Content-Range"] = f"bytes {begin}-{last}/{len(stored.data)}"
        return web.Response(status=206, body=part, headers=headers)

    def _list_objects(self, query) -> web.Response:
        after = query.get("continuation-token") or query.get("start-after", "")
        prefix, most = query.get("prefix", ""), int(query.get("max-keys", 1000))
        keys = [k for k in sorted(self._objects) if k.startswith(prefix) and k > after]
        page = keys[:most]
        text = "".join(
            f"<Contents><Key>{quote(key)}</Key><Size>{len(self._objects[key].data)}</Size>"
            f"<ETag>{escape(self._objects[key].etag)}</ETag>"
            f"<LastModified>{self._objects[key].time:%Y-%m-%dT%H:%M:%S.000Z}</LastModified>"
            "</Contents>"
            for key in page
        )
        if len(keys) > most:
            text += f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>"
        truncated = str(len(keys) > most).lower()
        return answer_xml(
            "ListBucketResult",
            f"<IsTruncated>{truncated}</IsTruncated><EncodingType>url</EncodingType>{text}",
        )

    def _list_uploads(self, prefix: str) -> web.Response:
        text = "".join(
            f"<Upload><Key>{quote(upload.key)}</Key><UploadId>{upload_id}</UploadId>"
            f"<Initiated>{upload.time:%Y-%m-%dT%H:%M:%S.000Z}</Initiated></Upload>"
            for upload_id, upload in sorted(self._uploads.items(), key=lambda pair: pair[1].key)
            if upload.key.startswith(prefix)
        )
        return answer_xml(
            "ListMultipartUploadsResult",
            f"<IsTruncated>false</IsTruncated><EncodingType>url</EncodingType>{text}",
        )


def read_metadata(request: web.Request) -> dict[str, str]:
    """The headers that the object is read with."""
    prefix = "x-amz-meta-"
    return {n: value for n, value in request.headers.items() if n.lower().startswith(prefix)}


def answer_xml(root: str, text: str, *, status: int = 200) -> web.Response:
    # boto3 reads no errors of a namespace
    namespace = "" if root == "Error" else f' xmlns="{NAMESPACE}"'
    body = f'<?xml version="1.0"?><{root}{namespace}>{text}</{root}>'
    return web.Response(status=status, text=body, content_type="application/xml")


def find_texts(body: bytes, name: str) -> Iterator[str]:
    """The texts of the elements of that name in an XML document."""
    for element in ElementTree.fromstring(body).iter():
        if element.tag.rpartition("}")[2] == name:
            yield element.text or ""
