"""From what a user typed to files on this machine: a directory, a GGUF file, or a model of the hub."""

from __future__ import annotations

import re
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from types import ModuleType
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from playhead.env import user_path
from playhead.errors import CheckpointError, some_of
from playhead.models.checkpoint.hub_download import OnFetch, RemoteFile, fetch_blob

HUB_PREFIX = "hf:"
# owner/name as the hub allows it, and a GGUF file in it. Each part of a path begins with a letter or a digit: no name
# leads out of the repository.
ID = r"[A-Za-z0-9][\w.-]{0,95}"
PART = r"[A-Za-z0-9][\w.+-]{0,127}"
HUB_NAME = re.compile(rf"({ID}/{ID})(?::((?:{PART}/){{0,4}}{PART}\.gguf))?")
REVISION = re.compile(r"(?!.*\.\.)[A-Za-z0-9][\w./+-]{0,254}")

# Only what is read. Pickled weights stay where they are, and so does code.
PATTERNS = ("*.json", "*.safetensors", "*.jinja")
# A pattern's * takes slashes too. Folders (original/, metal/, onnx/) and consolidated files repeat the same weights.
# Templates alone have a folder that is read (additional_chat_templates/).
IGNORED_PATTERNS = ("*/*.json", "*/*.safetensors", "*/*/*", "consolidated*", "*.bin", "*.pth", "*.pt")

CONNECT_SECONDS = 5.0
WANTED = "a directory, a .gguf file, or a hub id: owner/name or owner/name:file.gguf"
BRING_FILES = (
    "Copy the model's directory or .gguf file here and give its path; or copy the cache of a machine that has it and "
    "set HF_HOME to that copy; or set HF_ENDPOINT to a mirror."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HubName:
    """A repository of the hub, and the GGUF file in it that was named."""

    repo_id: str
    file: str | None = None

    def __str__(self) -> str:
        return self.repo_id if self.file is None else f"{self.repo_id}:{self.file}"


def hub_name(model: str) -> HubName | None:
    """The name as one of the hub, with or without the prefix; None if it cannot be one."""
    match = HUB_NAME.fullmatch(model.removeprefix(HUB_PREFIX))
    return None if match is None else HubName(repo_id=match.group(1), file=match.group(2))


def resolve_model(model: str, *, revision: str | None = None, config_only: bool = False) -> Path:
    """Where the model's files are. A hub id is downloaded if it is not here yet, and found in the cache if it is.

    A path comes before a hub id of the same name; "hf:" in front says that the name is no path. With `config_only` one
    small file is fetched, if the model is no GGUF file: enough to plan memory, or to make weights of the same shapes.
    """
    if not model.startswith(HUB_PREFIX):
        path = user_path(model)
        if path.is_dir() or (path.is_file() and path.suffix == ".gguf"):
            return path
        if path.exists():
            raise CheckpointError(model, "a file", "a directory, a .gguf file or a hub id", "Give its directory.")
    name = hub_name(model)
    if name is None:
        raise CheckpointError(model, "nothing by that name here", WANTED, "Check the name.")
    return fetch(name, revision=revision, config_only=config_only)


def fetch(
    name: HubName, *, revision: str | None = None, config_only: bool = False, on_progress: OnFetch | None = None
) -> Path:
    """The files of a model of the hub. What is in the cache is not fetched again; what was begun goes on."""
    if revision is not None and not REVISION.fullmatch(revision):
        raise CheckpointError(str(name), f"revision {revision!r:.80}", "a branch, a tag or a commit", "Check it.")
    hub = _library(name)
    errors = hub.errors
    is_here_only = hub.constants.HF_HUB_OFFLINE or not can_reach(hub.constants.ENDPOINT)
    repository = _Repository(hub, name, revision, is_here_only=is_here_only)
    try:
        with repository.without_bars():
            if not is_here_only:
                files = repository.files_of_a_model()
                if not config_only:
                    repository.fetch_weights(files, on_progress)
            if name.file is not None:
                return repository.file(name.file)
            return repository.file("config.json").parent if config_only else repository.snapshot()
    except errors.LocalEntryNotFoundError:
        found = "HF_HUB_OFFLINE is set" if hub.constants.HF_HUB_OFFLINE else "the hub cannot be reached"
        where = f"{found} ({hub.constants.ENDPOINT}), and the cache ({hub.constants.HF_HUB_CACHE}) has no whole copy"
        raise CheckpointError(str(name), where, "", BRING_FILES) from None
    except errors.HfHubHTTPError as error:
        status = error.response.status_code
        found = "the hub has no such model, file or revision" if status == 404 else "the hub refused it"
        fix = "Check the name, and the token if the model is not public (HF_TOKEN)."
        raise CheckpointError(str(name), f"{found} ({status})", "", fix) from None
    except _network_errors() as error:
        found = f"the download stopped ({type(error).__name__}: {error!s:.200})"
        raise CheckpointError(str(name), found, "", "Run it again: it goes on where it stopped.") from None


class _Repository:
    """One repository through the hub's library. With `is_here_only` only the cache is asked."""

    def __init__(self, hub: ModuleType, name: HubName, revision: str | None, *, is_here_only: bool) -> None:
        self._hub, self._name, self._revision, self._is_here_only = hub, name, revision, is_here_only

    @contextmanager
    def without_bars(self) -> Iterator[None]:
        """The library shows a bar for every small file, also where there is no terminal."""
        utils = self._hub.utils
        were_off = utils.are_progress_bars_disabled()
        utils.disable_progress_bars()
        try:
            yield
        finally:
            if not were_off:
                utils.enable_progress_bars()

    def files_of_a_model(self) -> list[str]:
        """The large files to fetch: the GGUF file that was named, or the weights beside a config.json."""
        if self._name.file is not None:
            return [self._name.file]
        listed = self._hub.HfApi().list_repo_files(self._name.repo_id, revision=self._revision)
        if "config.json" in listed:
            return [file for file in listed if file.endswith(".safetensors") and not is_ignored(file)]
        files = [file for file in listed if hub_name(f"{self._name}:{file}")]
        fix = f"Name one, as in {self._name}:{files[0]}." if files else "Take another repository."
        found = f"no config.json, and the GGUF files {some_of(files)}" if files else "no config.json and no GGUF file"
        raise CheckpointError(str(self._name), found, "a model in safetensors, or the name of a GGUF file", fix)

    def fetch_weights(self, files: Sequence[str], on_progress: OnFetch | None) -> None:
        """Bring large files into the library's cache: the library would begin each again after an interruption."""
        hub, repo_id = self._hub, self._name.repo_id
        blobs = Path(hub.constants.HF_HUB_CACHE) / f"models--{repo_id.replace('/', '--')}" / "blobs"
        for file in files:
            url = hub.hf_hub_url(repo_id, file, revision=self._revision)
            found, headers = hub.get_hf_file_metadata(url), hub.utils.build_hf_headers()
            if urlsplit(found.location).netloc != urlsplit(url).netloc:
                # A token is for the hub, not for the store that the hub points to.
                headers = {key: value for key, value in headers.items() if key.lower() != "authorization"}
            remote = RemoteFile(
                name=file, url=found.location, headers=headers, num_bytes=found.size or 0, etag=found.etag or ""
            )
            fetch_blob(remote, blobs, on_progress)

    def file(self, file: str) -> Path:
        repo_id, revision = self._name.repo_id, self._revision
        return Path(self._hub.hf_hub_download(repo_id, file, revision=revision, local_files_only=self._is_here_only))

    def snapshot(self) -> Path:
        return Path(
            self._hub.snapshot_download(
                self._name.repo_id,
                revision=self._revision,
                allow_patterns=list(PATTERNS),
                ignore_patterns=list(IGNORED_PATTERNS),
                local_files_only=self._is_here_only,
            )
        )


def is_ignored(file: str) -> bool:
    return any(fnmatch(file, pattern) for pattern in IGNORED_PATTERNS)


def can_reach(url: str) -> bool:
    """Whether the hub's address, or the proxy before it, answers. One try: the library makes six."""
    address = urlsplit(url)
    proxies = {} if proxy_bypass(address.hostname or "") else getproxies()
    address = urlsplit(proxies.get(address.scheme, proxies.get("all", url)))
    try:
        port = address.port or (80 if address.scheme == "http" else 443)
        with socket.create_connection((address.hostname or "", port), timeout=CONNECT_SECONDS):
            return True
    except (OSError, ValueError):  # ValueError: a port that is no number
        return False


def _library(name: HubName) -> ModuleType:
    try:
        import huggingface_hub
        import huggingface_hub.constants
        import huggingface_hub.errors
        import huggingface_hub.utils
    except ImportError:
        raise CheckpointError(
            str(name),
            "this is a hub id, and huggingface_hub is not installed",
            "",
            "Install playhead[hub], or pass a local directory.",
        ) from None
    return huggingface_hub


def _network_errors() -> tuple[type[Exception], ...]:
    """What a download that stops raises. Which HTTP client the library has depends on its version."""
    return (OSError, *(sys.modules[name].HTTPError for name in ("httpx2", "httpx") if name in sys.modules))
