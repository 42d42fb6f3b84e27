"""Large files of the hub come whole, go on where they stopped, and land only in the cache."""

from __future__ import annotations

import hashlib
import socket
import threading
from dataclasses import replace

import pytest

from playhead.models.checkpoint.hub_download import FetchProgress, RemoteFile, _alone, fetch_blob
from tests.unit.models.checkpoint.mirror import Mirror, running

DATA = bytes(range(256)) * 40
SHA = hashlib.sha256(DATA).hexdigest()


@pytest.fixture
def mirror():
    with running(Mirror(repositories={"me/m": {"m.gguf": DATA}})) as mirror:
        yield mirror


@pytest.fixture
def file(mirror):
    url = f"{mirror.url}/me/m/resolve/main/m.gguf"
    return RemoteFile(name="m.gguf", url=url, headers={"Authorization": "Bearer t"}, num_bytes=len(DATA), etag=SHA)


def test_a_file_comes_whole_under_its_hash(file, tmp_path):
    reports = []
    fetch_blob(file, tmp_path / "blobs", reports.append)
    assert (tmp_path / "blobs" / SHA).read_bytes() == DATA
    assert reports[-1] == FetchProgress(file="m.gguf", num_bytes=len(DATA), total_bytes=len(DATA))
    assert [path.name for path in (tmp_path / "blobs").iterdir()] == [SHA]


def test_a_file_that_is_here_is_not_asked_for(file, mirror, tmp_path):
    (tmp_path / SHA).write_bytes(DATA)
    fetch_blob(file, tmp_path)
    assert mirror.requests == []


def test_what_came_before_is_kept(file, mirror, tmp_path):
    (tmp_path / f"{SHA}.part").write_bytes(DATA[:5000])
    fetch_blob(file, tmp_path)
    assert [found for _, _, found in mirror.requests] == ["bytes=5000-"]
    assert (tmp_path / SHA).read_bytes() == DATA


def test_a_connection_that_breaks_is_tried_again_as_long_as_it_brings_something(file, mirror, tmp_path):
    mirror.breaks_after = 3000
    with pytest.raises(OSError, match=r"ended after|closed|disconnected"):
        fetch_blob(file, tmp_path)
    assert [found for _, _, found in mirror.requests] == ["", "bytes=3000-"]
    assert (tmp_path / f"{SHA}.part").read_bytes() == DATA[:3000]


def test_a_server_that_sends_everything_again_is_taken_at_its_word(file, mirror, tmp_path):
    mirror.ignores_ranges = True
    (tmp_path / f"{SHA}.part").write_bytes(b"x" * 5000)
    fetch_blob(file, tmp_path)
    assert (tmp_path / SHA).read_bytes() == DATA


def test_a_server_that_sends_ever_other_parts_again_is_given_up(file, mirror, tmp_path):
    """Each try brings bytes, and none brings the file further than the tries before it did."""
    mirror.ignores_ranges, mirror.breaks_after = True, 3000

    def alternate(progress):
        assert len(mirror.requests) < 5, "this would go on for ever"
        mirror.breaks_after = 5000 - mirror.breaks_after

    with pytest.raises(OSError, match="ended after"):
        fetch_blob(file, tmp_path, alternate)
    assert len(mirror.requests) == 2


@pytest.mark.parametrize(
    "said", [b"SMTP ready\r\n\r\n", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n99\r\nx"]
)
def test_an_answer_that_is_no_http_is_an_error_of_the_network(file, tmp_path, said):
    """What http.client raises about an answer is no OSError, and a caller waits for those."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=answer_once, args=(server, said))
        thread.start()
        with pytest.raises(OSError, match=r"m\.gguf: (BadStatusLine|IncompleteRead)"):
            fetch_blob(replace(file, url=f"http://127.0.0.1:{server.getsockname()[1]}/m.gguf"), tmp_path)
        thread.join()


def answer_once(server, said):
    connection, _ = server.accept()
    with connection:
        connection.recv(1 << 16)
        connection.sendall(said)


def test_a_file_with_another_hash_is_removed(file, tmp_path):
    (tmp_path / f"{SHA}.part").write_bytes(b"x" * 5000)
    with pytest.raises(OSError, match="SHA-256"):
        fetch_blob(file, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("change", [{"etag": "../../x"}, {"etag": ""}, {"url": "file:///etc/passwd"}])
def test_a_name_or_an_address_that_leads_elsewhere_is_left_to_the_library(file, mirror, tmp_path, change):
    fetch_blob(replace(file, **change), tmp_path / "blobs")
    assert mirror.requests == []
    assert list(tmp_path.iterdir()) == []


def test_two_downloads_of_one_file_do_not_mix(file, tmp_path):
    with (
        (tmp_path / f"{SHA}.part").open("ab") as other,
        _alone(other, file),
        pytest.raises(BlockingIOError, match=r"another process is fetching m\.gguf"),
    ):
        fetch_blob(file, tmp_path)
