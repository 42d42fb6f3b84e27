"""Who may call: API keys, and the tenant that each key stands for. No torch.

Keys come from a file or from the environment, never from a command line, where every user of the machine could read
them. A key file has one key per line, with a name before it or none:

    # comment
    alice: sk-Qm3...
    sk-7fK...

A key's name may be logged, the key never. Each key has a salt of its own for the prefix cache, so that no tenant can
learn from the time to the first token what another one has asked.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
import re
import secrets
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from playhead.env import API_KEYS, api_keys_text, user_path
from playhead.errors import ConfigError
from playhead.serve.call import Tenant

KEY = re.compile(r"[\x21-\x7e]{16,512}")
NAMED = re.compile(r"([A-Za-z0-9_.-]{1,64}):\s*(\S+)")
BEARER = re.compile(rb"[Bb][Ee][Aa][Rr][Ee][Rr] +([\x21-\x7e]+)")
MAX_KEYS = 1000
MAX_FILE_BYTES = 1 << 20
FORBIDDEN_BITS = stat.S_IWGRP | stat.S_IRWXO

EVERYONE = Tenant()


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedKey:
    """One key as it was written down. `where` names its line for errors."""

    name: str
    key: str
    where: str


class KeyRing:
    """The keys that are let in. An empty ring lets everyone in: `check_exposure` allows it on loopback alone.

    Only digests are kept, so the keys are in no memory dump and no repr.
    """

    def __init__(self, keys: Sequence[NamedKey]) -> None:
        secret = secrets.token_bytes(32)
        self._tenants = tuple(
            (
                digest(key.key.encode()),
                Tenant(name=key.name, salt=hmac.new(secret, key.key.encode(), "sha256").hexdigest()),
            )
            for key in keys
        )

    def __len__(self) -> int:
        return len(self._tenants)

    def tenant_of(self, authorizations: Sequence[bytes]) -> Tenant | None:
        """The tenant whose key the `Authorization` headers of one request carry; None if there is none.

        Every key is compared, in constant time, whichever matches.
        """
        if not self._tenants:
            return EVERYONE
        found = BEARER.fullmatch(authorizations[0]) if len(authorizations) == 1 else None
        given = digest(found.group(1) if found is not None else b"")
        matched = None
        for known, tenant in self._tenants:
            if hmac.compare_digest(known, given):
                matched = tenant
        return matched if found is not None else None


def digest(key: bytes) -> bytes:
    """A key as it is kept and compared: keys of all lengths become one length."""
    return hashlib.sha256(key).digest()


def load_keys(path: str | None) -> KeyRing:
    """The keys of the file and of the environment together, or `ConfigError`."""
    keys = keys_of_file(user_path(path)) if path is not None else []
    keys += keys_of_environment(first_number=len(keys) + 1)
    refuse_twins(keys)
    return KeyRing(keys)


def keys_of_file(path: Path) -> list[NamedKey]:
    """The keys in a file that others can neither read nor change."""
    where = "api_key_file"
    try:
        with path.open("rb") as file:
            check_permissions(where, os.fstat(file.fileno()))
            text = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{where}: cannot be read ({error.strerror}). Check the path.") from None
    if len(text) > MAX_FILE_BYTES:
        raise ConfigError(f"{where}: more than {MAX_FILE_BYTES} bytes; wanted one key per line.")
    try:
        lines = text.decode("ascii").splitlines()
    except UnicodeDecodeError:
        raise ConfigError(f"{where}: found bytes that are not ASCII; wanted one key per line.") from None
    numbered = [(f"{where} line {number}", line.strip()) for number, line in enumerate(lines, 1)]
    keys = parsed_keys((here, line) for here, line in numbered if line and not line.startswith("#"))
    if not keys:
        raise ConfigError(f"{where}: found no key; wanted one per line.")
    return keys


def check_permissions(where: str, status: os.stat_result) -> None:
    """`ConfigError` if another user could read the keys or add one."""
    if not stat.S_ISREG(status.st_mode):
        raise ConfigError(f"{where}: not a regular file.")
    if status.st_mode & FORBIDDEN_BITS:
        raise ConfigError(
            f"{where}: other users can read or change it (mode {stat.S_IMODE(status.st_mode):o}). Run chmod 600 on it."
        )
    if status.st_uid not in (0, os.geteuid()):
        raise ConfigError(f"{where}: it belongs to another user; wanted a file of this user or of root.")


def keys_of_environment(*, first_number: int = 1) -> list[NamedKey]:
    """The keys in PLAYHEAD_API_KEYS, with commas or line ends between them. The first of them has this number."""
    text = api_keys_text()
    if text is None:
        return []
    parts = [part.strip() for part in re.split(r"[,\n]", text)]
    lines = ((f"{API_KEYS} key {number}", part) for number, part in enumerate(parts, 1) if part)
    keys = parsed_keys(lines, first_number=first_number)
    if not keys:
        # An empty variable is more likely a secret that was not filled in than a wish for no keys at all.
        raise ConfigError(f"{API_KEYS}: it has no key. Write keys with commas between them, or unset it.")
    return keys


def parsed_keys(lines: Iterable[tuple[str, str]], *, first_number: int = 1) -> list[NamedKey]:
    """One key per line. A key without a name gets its number as one: `key-2` for the second of all."""
    keys: list[NamedKey] = []
    for where, line in lines:
        named = NAMED.fullmatch(line)
        name, key = named.groups() if named is not None else (f"key-{first_number + len(keys)}", line)
        if not KEY.fullmatch(key):
            raise ConfigError(f"{where}: found a key of {len(key)} characters; wanted 16 to 512 of ASCII, no spaces.")
        keys.append(NamedKey(name=name, key=key, where=where))
    if len(keys) > MAX_KEYS:
        raise ConfigError(f"{keys[0].where}: found {len(keys)} keys; wanted at most {MAX_KEYS}.")
    return keys


def refuse_twins(keys: Sequence[NamedKey]) -> None:
    """`ConfigError` if two keys are one, or share a name: the log could not say who called."""
    for what, values in (("name", [key.name for key in keys]), ("key", [key.key for key in keys])):
        for i, value in enumerate(values):
            if value in values[:i]:
                raise ConfigError(
                    f"{keys[i].where}: its {what} is that of {keys[values.index(value)].where}. Remove one."
                )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_exposure(host: str, keys: KeyRing, *, allows_anyone: bool) -> None:
    """`ConfigError` if others could reach the server and no key would stop them, unless that was asked for by name."""
    if not keys and not is_loopback(host) and not allows_anyone:
        raise ConfigError(
            f"host: {host!r} can be reached from other machines, and there is no API key. Give --api-key-file, or set "
            f"{API_KEYS}, or pass --allow-anyone to serve everyone who can reach this address."
        )
