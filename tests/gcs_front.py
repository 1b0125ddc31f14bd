"""Google's XML API in front of fake-gcs-server, which speaks the JSON API: the client of object stores speaks XML.

A request of the one becomes a request of the other, as Google documents both. Whether a condition holds is fake-gcs-
server's decision (``ifGenerationMatch``), as is what an object is. Uploads in parts are kept here until they are
complete. Not played: pages of long listings, conditions of copies, and who may do what.

Source: Cloud Storage, "XML API overview", "Objects: insert", "Objects: rewrite".
"""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import threading
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, quote, unquote, urlsplit
from xml.etree import ElementTree
from xml.sax.saxutils import escape

_META = "x-goog-meta-"
_GENERATION = "x-goog-if-generation-match"
_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")


class GcsFront(ThreadingHTTPServer):
    """Answers on a port of the loopback; an emulator that is away is a 503.

    Args:
        port: Its own.
        backend_port: fake-gcs-server's.
    """

    daemon_threads = True

    def __init__(self, port: int, backend_port: int) -> None:
        super().__init__(("127.0.0.1", port), _Requests)
        self.backend_port = backend_port
        self.uploads: dict[str, tuple[str, dict[str, str], dict[int, bytes]]] = {}
        threading.Thread(target=self.serve_forever, daemon=True).start()


class _AwayError(Exception):
    """The emulator cannot be asked."""


class _Requests(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: GcsFront

    def _handle(self) -> None:
        place = urlsplit(self.path)
        bucket, _, name = unquote(place.path).lstrip("/").partition("/")
        query = {key: values[0] for key, values in parse_qs(place.query, keep_blank_values=True).items()}
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        try:
            if not name:
                self._list(bucket, query)
            elif "uploads" in query or "uploadId" in query:
                self._upload_in_parts(bucket, name, query, body)
            else:
                {"GET": self._get, "HEAD": self._get, "PUT": self._put, "DELETE": self._delete}[self.command](
                    bucket, name, body
                )
        except _AwayError as error:
            self._answer(503, f"<Error><Code>ServiceUnavailable</Code><Details>{error}</Details></Error>".encode())

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _handle

    # ----------------------------------------------------------------------------------------------------- the requests
    def _put(self, bucket: str, name: str, body: bytes) -> None:
        source = self.headers.get("x-goog-copy-source")
        if source is None:
            self._insert(bucket, name, self._metadata(), body)
            return
        old_bucket, _, old = unquote(source).lstrip("/").partition("/")
        target = f"b/{quote(old_bucket, '')}/o/{quote(old, '')}/copyTo/b/{quote(bucket, '')}/o/{quote(name, '')}"
        status, _, said = self._ask("POST", f"/storage/v1/{target}")
        self._answer(status, b"<CopyObjectResult/>" if status == 200 else said)

    def _insert(self, bucket: str, name: str, metadata: dict[str, str], body: bytes, answer: bytes = b"") -> None:
        boundary = uuid.uuid4().hex
        said = json.dumps({"name": name, "metadata": metadata}).encode()
        head = f"--{boundary}\r\nContent-Type: application/json\r\n\r\n".encode()
        middle = f"\r\n--{boundary}\r\nContent-Type: application/octet-stream\r\n\r\n".encode()
        whole = head + said + middle + body + f"\r\n--{boundary}--\r\n".encode()
        path = f"/upload/storage/v1/b/{quote(bucket, '')}/o?uploadType=multipart&name={quote(name, '')}"
        if _GENERATION in self.headers:
            path += f"&ifGenerationMatch={quote(self.headers[_GENERATION])}"
        status, _, text = self._ask("POST", path, whole, {"Content-Type": f"multipart/related; boundary={boundary}"})
        if status != 200:
            self._answer(status, text)
            return
        made = json.loads(text)
        self._answer(200, answer, {"ETag": f'"{made["etag"]}"', "x-goog-generation": str(made["generation"])})

    def _metadata(self) -> dict[str, str]:
        found = {name.lower(): value for name, value in self.headers.items() if name.lower().startswith(_META)}
        assert all(_TOKEN.fullmatch(name) for name in found)
        return {name.removeprefix(_META): value for name, value in found.items()}

    def _get(self, bucket: str, name: str, _body: bytes) -> None:
        asked = {key: self.headers[key] for key in ("Range",) if key in self.headers}
        path = f"/download/storage/v1/b/{quote(bucket, '')}/o/{quote(name, '')}?alt=media"
        status, headers, content = self._ask("GET", path, headers=asked)
        wanted = self.headers.get("If-Match")
        if status < 300 and wanted not in (None, headers["ETag"]):
            self._answer(412, b"<Error><Code>PreconditionFailed</Code></Error>")
            return
        kept = ("etag", "last-modified", "content-range", "x-goog-generation")
        self._answer(
            status, content, {key: headers[key] for key in headers if key.lower() in kept or key.lower()[:12] == _META}
        )

    def _delete(self, bucket: str, name: str, _body: bytes) -> None:
        status, _, text = self._ask("DELETE", f"/storage/v1/b/{quote(bucket, '')}/o/{quote(name, '')}")
        self._answer(204 if status < 300 else status, b"" if status < 300 else text)

    def _list(self, bucket: str, query: dict[str, str]) -> None:
        path = f"/storage/v1/b/{quote(bucket, '')}/o?prefix={quote(query.get('prefix', ''), '')}"
        status, _, text = self._ask("GET", path)
        if status != 200:
            self._answer(status, text)
            return
        parts = ["<ListBucketResult><IsTruncated>false</IsTruncated>"]
        for found in json.loads(text).get("items", ()):
            parts.append(f"<Contents><Key>{escape(found['name'])}</Key><Size>{found['size']}</Size>")
            parts.append(f"<LastModified>{found['updated']}</LastModified><ETag>{found['etag']}</ETag></Contents>")
        self._answer(200, "".join([*parts, "</ListBucketResult>"]).encode())

    def _upload_in_parts(self, bucket: str, name: str, query: dict[str, str], body: bytes) -> None:
        uploads = self.server.uploads
        if "uploads" in query:
            identity = uuid.uuid4().hex
            uploads[identity] = name, self._metadata(), {}
            self._answer(
                200,
                f"<InitiateMultipartUploadResult><UploadId>{identity}</UploadId></InitiateMultipartUploadResult>".encode(),
            )
            return
        identity = query["uploadId"]
        if identity not in uploads or uploads[identity][0] != name:
            self._answer(404, b"<Error><Code>NoSuchUpload</Code></Error>")
        elif self.command == "PUT":
            uploads[identity][2][int(query["partNumber"])] = body
            self._answer(200, b"", {"ETag": f'"{query["partNumber"]}"'})
        elif self.command == "DELETE":
            del uploads[identity]
            self._answer(204)
        else:
            _, metadata, parts = uploads.pop(identity)
            numbers = [
                int(one.text or "") for one in ElementTree.fromstring(body).iter() if one.tag.endswith("PartNumber")
            ]
            assert numbers == sorted(parts), "a part is missing, or not named"
            whole = b"".join(parts[number] for number in numbers)
            answer = b"<CompleteMultipartUploadResult><ETag>x</ETag></CompleteMultipartUploadResult>"
            self._insert(bucket, name, metadata, whole, answer)

    # ---------------------------------------------------------------------------------------------------- the two ends
    def _ask(
        self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> tuple[int, http.client.HTTPMessage, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.backend_port, timeout=30)
        try:
            connection.request(method, path, body, headers or {})
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise _AwayError(repr(error)) from error
        finally:
            connection.close()

    def _answer(self, status: int, body: bytes = b"", headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        with contextlib.suppress(ConnectionError):  # a client that has heard enough
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

    def log_message(self, *_args: object) -> None:
        """Says nothing."""
