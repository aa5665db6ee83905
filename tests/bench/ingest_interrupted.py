"""Kills the worker of a 5 GB ingest ten times at random: how much is transferred twice, and whether the file is exact.

`python -m tests.bench.ingest_interrupted [GIGABYTES]`. The worker is a separate process with the real fetch, S3 and
DynamoDB clients; it gets SIGKILL. DynamoDB is moto, the bucket is a folder that is removed at the end.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import boto3
from botocore import xform_name
from botocore.exceptions import ClientError
from moto import mock_aws

from tests.support.http_servers import Handler, serve
from tests.support.template import ROOT

MEGABYTE = 1024 * 1024
BLOCK = random.Random(23).randbytes(MEGABYTE)
KILLS = 10
BAR = 1.10


class Source:
    """Serves generated content: one random megabyte, repeated with its number at its start."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.sent = 0
        self._lock = threading.Lock()

    def content(self, start: int, last: int) -> Iterator[bytes]:
        while start <= last:
            number, offset = divmod(start, MEGABYTE)
            chunk = (number.to_bytes(8) + BLOCK[8:])[offset : offset + last + 1 - start]
            yield chunk
            start += len(chunk)

    def answer(self, handler: Handler) -> None:
        range_header = handler.headers.get("Range")
        first, last = (
            (int(end) for end in range_header.removeprefix("bytes=").split("-")) if range_header else (0, self.size - 1)
        )
        handler.send_response(206 if range_header else 200)
        for name, value in (("Accept-Ranges", "bytes"), ("ETag", '"v1"'), ("Content-Length", str(last + 1 - first))):
            handler.send_header(name, value)
        if range_header:
            handler.send_header("Content-Range", f"bytes {first}-{last}/{self.size}")
        handler.end_headers()
        try:
            for chunk in self.content(first, last):
                handler.wfile.write(chunk)
                with self._lock:
                    self.sent += len(chunk)
        except OSError:
            handler.close_connection = True


class FolderBucket:
    """The part of S3 that multipart uploads and range reads need; parts are files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._whole: dict[str, list[Path]] = {}

    def answer(self, handler: Handler) -> None:
        url = urlsplit(handler.path)
        query = parse_qs(url.query, keep_blank_values=True)
        upload = query.get("uploadId", [""])[0]
        if "partNumber" in query:
            body = handler.body()
            if len(body) < int(handler.headers["Content-Length"]):
                # The sender was killed: S3 keeps no incomplete part.
                handler.close_connection = True
                return
            part = self._folder / upload / f"{int(query['partNumber'][0]):05d}"
            part.with_suffix(".new").write_bytes(body)
            part.with_suffix(".new").rename(part)
            handler.answer(200, ETag=f'"{part.name}"')
            return
        handler.body()
        if "uploads" in query:
            upload = f"up{len(list(self._folder.iterdir()))}"
            (self._folder / upload).mkdir()
            handler.answer(200, _xml("InitiateMultipartUploadResult", f"<UploadId>{upload}</UploadId>"))
        elif upload and handler.command == "GET":
            self._list(handler, upload, int(query.get("part-number-marker", ["0"])[0]))
        elif upload and handler.command == "POST":
            self._whole[url.path] = self._parts(upload)
            handler.answer(200, _xml("CompleteMultipartUploadResult", "<ETag>&quot;whole&quot;</ETag>"))
        elif handler.command in ("HEAD", "GET") and url.path in self._whole:
            self._read(handler, self._whole[url.path])
        else:
            handler.answer(404 if handler.command in ("HEAD", "GET") else 204)

    def _parts(self, upload: str) -> list[Path]:
        return sorted(part for part in (self._folder / upload).iterdir() if part.suffix != ".new")

    def _list(self, handler: Handler, upload: str, after: int) -> None:
        parts = [part for part in self._parts(upload) if int(part.name) > after]
        listed = "".join(
            f"<Part><PartNumber>{int(part.name)}</PartNumber><ETag>&quot;{part.name}&quot;</ETag>"
            f"<Size>{part.stat().st_size}</Size></Part>"
            for part in parts[:1000]
        )
        more = len(parts) > 1000
        marker = f"<NextPartNumberMarker>{int(parts[999].name)}</NextPartNumberMarker>" if more else ""
        handler.answer(200, _xml("ListPartsResult", f"<IsTruncated>{str(more).lower()}</IsTruncated>{marker}{listed}"))

    def _read(self, handler: Handler, parts: list[Path]) -> None:
        size = sum(part.stat().st_size for part in parts)
        range_header = handler.headers.get("Range")
        first, last = (
            (int(end) for end in range_header.removeprefix("bytes=").split("-")) if range_header else (0, size - 1)
        )
        handler.send_response(206 if range_header else 200)
        handler.send_header("ETag", '"whole"')
        handler.send_header("Content-Length", str(last + 1 - first))
        if range_header:
            handler.send_header("Content-Range", f"bytes {first}-{last}/{size}")
        handler.end_headers()
        at = 0
        for part in parts if handler.command == "GET" else ():
            length = part.stat().st_size
            if at <= last and at + length > first:
                with part.open("rb") as opened:
                    opened.seek(max(0, first - at))
                    handler.wfile.write(opened.read(min(length, last + 1 - at) - max(0, first - at)))
            at += length


def _xml(name: str, inner: str) -> bytes:
    return f'<?xml version="1.0"?><{name} xmlns="http://s3.amazonaws.com/doc/2006-03-01/">{inner}</{name}>'.encode()


class DynamoBridge:
    """moto's DynamoDB for other processes: passes their HTTP requests to the client in this process."""

    def __init__(self) -> None:
        self._client = boto3.client("dynamodb", region_name="us-east-1")
        self._client.create_table(
            TableName="tidegate",
            BillingMode="PAY_PER_REQUEST",
            AttributeDefinitions=[{"AttributeName": name, "AttributeType": "S"} for name in ("pk", "sk")],
            KeySchema=[{"AttributeName": "pk", "KeyType": "HASH"}, {"AttributeName": "sk", "KeyType": "RANGE"}],
        )

    def answer(self, handler: Handler) -> None:
        action = handler.headers["X-Amz-Target"].rpartition(".")[2]
        try:
            result = getattr(self._client, xform_name(action))(**json.loads(handler.body()))
        except ClientError as error:
            problem = {"__type": error.response["Error"]["Code"], "message": str(error)}
            handler.answer(400, json.dumps(problem | {"Item": error.response.get("Item")}).encode())
            return
        result.pop("ResponseMetadata")
        handler.answer(200, json.dumps(result).encode())


@mock_aws
def measure(size: int, seed: int = 23) -> dict[str, Any]:
    chance, source = random.Random(seed), Source(size)
    folder = Path(tempfile.mkdtemp(prefix="tidegate-ingest-"))
    try:
        with (
            serve(source.answer) as port,
            serve(FolderBucket(folder).answer) as bucket,
            serve(DynamoBridge().answer) as dynamo,
        ):
            env = _environment(f"http://127.0.0.1:{bucket}", f"http://127.0.0.1:{dynamo}")
            began = time.monotonic()
            for _ in range(KILLS):
                _run_until(source, source.sent + int(size * chance.uniform(0.02, 0.09)), port, env)
            result = _run_to_the_end(port, env)
            seconds = time.monotonic() - began
        expected = hashlib.sha256()
        for chunk in source.content(0, size - 1):
            expected.update(chunk)
        return {
            "size": size,
            "sent": source.sent,
            "ratio": source.sent / size,
            "seconds": seconds,
            "exact": result["signature"] == expected.hexdigest() and result["size"] == size,
            "peak_mb": result["peak_mb"],
        }
    finally:
        shutil.rmtree(folder)


def _environment(bucket: str, dynamo: str) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "layers/core")]),
        "AWS_ENDPOINT_URL_S3": bucket,
        "AWS_ENDPOINT_URL_DYNAMODB": dynamo,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "FILES_BUCKET": "files",
        "TABLE_NAME": "tidegate",
    }


def _command(port: int) -> list[str]:
    return [sys.executable, "-m", "tests.support.ingest.worker", f"http://127.0.0.1:{port}/large.bin", "resume"]


def _run_until(source: Source, bytes_sent: int, port: int, env: dict[str, str]) -> None:
    """Kills the worker once the source has sent so much."""
    worker = subprocess.Popen(_command(port), env=env, stdout=subprocess.DEVNULL)
    while source.sent < bytes_sent:
        if worker.poll() is not None:
            raise RuntimeError(f"the worker ended by itself: {worker.returncode}")
        time.sleep(0.01)
    worker.send_signal(signal.SIGKILL)
    worker.wait()


def _run_to_the_end(port: int, env: dict[str, str]) -> dict[str, Any]:
    done = subprocess.run(_command(port), env=env, stdout=subprocess.PIPE, check=True, timeout=1800)
    return dict(json.loads(done.stdout))


def main() -> int:
    gigabytes = float(sys.argv[1]) if len(sys.argv) > 1 else 5.0
    result = measure(int(gigabytes * 10**9))
    print(
        f"{result['size'] / 1e9:.2f} GB, killed {KILLS} times: {result['sent'] / 1e9:.3f} GB sent by the source "
        f"({(result['ratio'] - 1) * 100:.1f} % twice, bar {(BAR - 1) * 100:.0f} %), "
        f"bit-exact: {'yes' if result['exact'] else 'NO'}, {result['seconds']:.0f} s, "
        f"worker's peak {result['peak_mb']:.0f} MB"
    )
    return 0 if result["exact"] and result["ratio"] <= BAR else 1


if __name__ == "__main__":
    sys.exit(main())
