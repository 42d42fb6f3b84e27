"""A large file of the hub, fetched so that a second try goes on where the first one stopped.

The hub's library throws away what an interrupted download has brought. This file puts weights into the library's cache
under the name that the library looks for, and leaves everything else to the library.
"""

from __future__ import annotations

import hashlib
import os
import re
import urllib.request as http
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import BinaryIO
from urllib.parse import urlsplit

READ_BYTES = 1 << 20
SILENCE_SECONDS = 30.0
# The hub names a file by a hash of its content. A name from a server becomes a path, so nothing else is taken.
GIT_HASH, SHA256 = re.compile(r"[0-9a-f]{40}"), re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchProgress:
    """How far the download of one file is."""

    file: str
    num_bytes: int
    total_bytes: int


OnFetch = Callable[[FetchProgress], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteFile:
    """A file as the hub describes it. `headers` may hold a token, and go to this address alone."""

    name: str
    url: str
    headers: Mapping[str, str]
    num_bytes: int
    etag: str

    @property
    def is_plain(self) -> bool:
        """Whether it can be fetched here: over HTTP, with a hash for its name."""
        has_hash = GIT_HASH.fullmatch(self.etag) or SHA256.fullmatch(self.etag)
        return bool(has_hash) and urlsplit(self.url).scheme in ("http", "https")


def fetch_blob(file: RemoteFile, blobs: Path, on_progress: OnFetch | None = None) -> None:
    """Bring the file's content into the cache's `blobs`. An OSError leaves what came, for the next try."""
    blob, part = blobs / file.etag, blobs / f"{file.etag}.part"
    if blob.exists() or not file.is_plain:
        return
    blobs.mkdir(parents=True, exist_ok=True)
    with part.open("ab") as target, _alone(target, file):
        if target.tell() > file.num_bytes:
            target.truncate(0)
        while (start := target.seek(0, os.SEEK_END)) < file.num_bytes:
            try:
                _append(file, target, start, on_progress)
            except (OSError, HTTPException) as error:
                # A connection may break now and then in a long download, but each must bring the file further. A
                # server that sends everything again may bring less than was here.
                if target.tell() <= start:
                    raise OSError(f"{file.name}: {type(error).__name__}: {error}") from error
        target.flush()
        _check_content(file, part)
        part.rename(blob)


def _append(file: RemoteFile, target: BinaryIO, start: int, on_progress: OnFetch | None) -> None:
    """Fetch from `start` to the end, or as far as the connection holds."""
    request = http.Request(file.url)  # its scheme was checked
    for name, value in file.headers.items():
        request.add_unredirected_header(name, value)
    if start:
        request.add_header("Range", f"bytes={start}-")
    with _opener().open(request, timeout=SILENCE_SECONDS) as response:
        if start and response.status != 206:  # the server sends the whole file whatever was asked for
            start = target.seek(0)
            target.truncate()
        left = file.num_bytes - start
        while left and (data := response.read(min(READ_BYTES, left))):
            target.write(data)
            left -= len(data)
            if on_progress is not None:
                on_progress(FetchProgress(file=file.name, num_bytes=file.num_bytes - left, total_bytes=file.num_bytes))
    if left:
        raise ConnectionError(f"{file.name} ended after {file.num_bytes - left} of {file.num_bytes} bytes")


def _opener() -> http.OpenerDirector:
    """HTTP alone: urllib's own opener would follow a redirect to FTP."""
    opener = http.OpenerDirector()
    for handler in (
        http.ProxyHandler(),
        http.HTTPHandler(),
        http.HTTPSHandler(),
        http.HTTPRedirectHandler(),
        http.HTTPDefaultErrorHandler(),
        http.HTTPErrorProcessor(),
    ):
        opener.add_handler(handler)
    return opener


def _check_content(file: RemoteFile, part: Path) -> None:
    """Large files are named by their SHA-256. A file that differs is removed: going on would not repair it."""
    if not SHA256.fullmatch(file.etag):
        return
    with part.open("rb") as content:
        found = hashlib.file_digest(content, "sha256").hexdigest()
    if found != file.etag:
        part.unlink()
        raise OSError(f"{file.name} has SHA-256 {found}, not {file.etag}; it was removed")


@contextmanager
def _alone(target: BinaryIO, file: RemoteFile) -> Iterator[None]:
    """Two processes must not append to one file. The lock goes with the file, whatever ends the process."""
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    try:
        fcntl.flock(target, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise BlockingIOError(f"another process is fetching {file.name}") from None
    yield
