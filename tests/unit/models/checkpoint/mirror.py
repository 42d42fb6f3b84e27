"""A mirror of the hub on this machine: the few requests that a download makes, and connections that break."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

COMMIT = "c" * 40


@dataclass
class Mirror:
    """Repositories with their files. `breaks_after` ends the connection after so many bytes of a file, every time."""

    repositories: Mapping[str, Mapping[str, bytes]]
    breaks_after: int | None = None
    ignores_ranges: bool = False
    url: str = ""
    requests: list[tuple[str, str, str]] = field(default_factory=list)
    """Method, path and range of every request."""

    def fetched(self) -> set[str]:
        """The files that were asked for, and not only asked about."""
        return {path.rpartition("/")[2] for method, path, _ in self.requests if method == "GET" and "/resolve/" in path}


@contextmanager
def running(mirror: Mirror) -> Iterator[Mirror]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            answer(self, mirror)

        def do_HEAD(self) -> None:
            answer(self, mirror)

        def log_message(self, *args: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    mirror.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield mirror
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def answer(request: BaseHTTPRequestHandler, mirror: Mirror) -> None:
    path = unquote(urlsplit(request.path).path)
    mirror.requests.append((request.command, path, request.headers.get("Range", "")))
    if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/(revision|tree)/([^/]+)", path):
        repo_id, what, revision = match.groups()
        if repo_id not in mirror.repositories or revision not in ("main", COMMIT):
            reply(request, 404, b"{}", {"X-Error-Code": "RepoNotFound"})
            return
        files = mirror.repositories[repo_id]
        info = {"id": repo_id, "sha": COMMIT, "siblings": [{"rfilename": name} for name in files]}
        tree = [{"type": "file", "path": name, "size": len(data), "oid": oid(data)} for name, data in files.items()]
        reply(request, 200, json.dumps(info if what == "revision" else tree).encode())
    elif match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/[^/]+/(.+)", path):
        repo_id, name = match.groups()
        if name not in mirror.repositories.get(repo_id, {}):
            reply(request, 404, b"", {"X-Error-Code": "EntryNotFound"})
            return
        send_file(request, mirror, mirror.repositories[repo_id][name])
    else:
        reply(request, 404, b"{}")


def send_file(request: BaseHTTPRequestHandler, mirror: Mirror, data: bytes) -> None:
    wanted = "" if mirror.ignores_ranges else request.headers.get("Range", "")
    found = re.fullmatch(r"bytes=(\d+)-", wanted)
    start = int(found.group(1)) if found else 0
    headers = {"ETag": f'"{oid(data)}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
    if found:
        headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
    breaks = mirror.breaks_after is not None and request.command == "GET" and len(data) > mirror.breaks_after
    if breaks and start:
        request.close_connection = True  # before a single byte
        return
    part = data[start : mirror.breaks_after] if breaks else data[start:]
    reply(request, 206 if found else 200, part, headers, length=len(data) - start)
    request.close_connection = request.close_connection or breaks


def reply(
    request: BaseHTTPRequestHandler,
    status: int,
    body: bytes,
    headers: Mapping[str, str] | None = None,
    *,
    length: int | None = None,
) -> None:
    request.send_response(status)
    for name, value in {"Content-Length": str(len(body) if length is None else length), **(headers or {})}.items():
        request.send_header(name, value)
    request.end_headers()
    if request.command == "GET":
        request.wfile.write(body)


def oid(data: bytes) -> str:
    return hashlib.sha1(data, usedforsecurity=False).hexdigest()
