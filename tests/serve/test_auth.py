"""Keys: where they may come from, who gets in, and that nobody else does."""

from __future__ import annotations

import pytest

from playhead.env import API_KEYS
from playhead.errors import ConfigError
from playhead.serve.auth import KeyRing, NamedKey, check_exposure, is_loopback, load_keys

ALICE, BOB = "alice-0123456789abcdef", "bob-0123456789abcdef"


@pytest.fixture(autouse=True)
def _no_keys_in_the_environment(monkeypatch):
    monkeypatch.delenv(API_KEYS, raising=False)


@pytest.fixture
def key_file(tmp_path):
    def written(text: str, mode: int = 0o600):
        path = tmp_path / "keys"
        path.write_text(text)
        path.chmod(mode)
        return str(path)

    return written


def bearer(key: str) -> list[bytes]:
    return [b"Bearer " + key.encode()]


def test_a_key_file_has_a_key_per_line_with_a_name_or_none(key_file):
    ring = load_keys(key_file(f"# ours\nalice: {ALICE}\n\n  {BOB}  \n"))
    assert ring.tenant_of(bearer(ALICE)).name == "alice"
    assert ring.tenant_of(bearer(BOB)).name == "key-2"


def test_keys_of_the_environment_are_added(key_file, monkeypatch):
    monkeypatch.setenv(API_KEYS, f"bob:{BOB},")
    ring = load_keys(key_file(f"alice: {ALICE}"))
    assert {ring.tenant_of(bearer(key)).name for key in (ALICE, BOB)} == {"alice", "bob"}


def test_keys_without_names_have_one_each_wherever_they_stand(key_file, monkeypatch):
    monkeypatch.setenv(API_KEYS, BOB)
    ring = load_keys(key_file(ALICE))
    assert [ring.tenant_of(bearer(key)).name for key in (ALICE, BOB)] == ["key-1", "key-2"]


@pytest.mark.parametrize("mode", [0o604, 0o644, 0o666, 0o620, 0o601, 0o777])
def test_a_key_file_that_others_can_read_or_change_is_refused(key_file, mode):
    with pytest.raises(ConfigError, match="chmod 600"):
        load_keys(key_file(ALICE, mode))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "found no key"),
        ("# nothing\n", "found no key"),
        ("short", "found a key of 5 characters"),
        ("two words-0123456789abcdef", "found a key of"),
        ("k" * 513, "found a key of 513 characters"),
        (f"{ALICE}\n{ALICE}", "line 2: its key is that of api_key_file line 1"),
        (f"a: {ALICE}\na: {BOB}", "its name is that of"),
        ("schlüssel-0123456789abcdef", "not ASCII"),
        ("x" * (1 << 20) + "x", "more than"),
    ],
)
def test_a_key_file_that_says_nothing_clear_is_refused_and_the_key_not_repeated(key_file, text, words):
    with pytest.raises(ConfigError, match=words) as error:
        load_keys(key_file(text))
    assert ALICE not in str(error.value)


def test_a_key_file_that_is_not_there_or_no_file_is_refused(tmp_path):
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(ConfigError, match="api_key_file"):
            load_keys(str(path))


def test_an_empty_variable_is_no_wish_for_no_keys(monkeypatch):
    monkeypatch.setenv(API_KEYS, " , ")
    with pytest.raises(ConfigError, match="it has no key"):
        load_keys(None)


def ring() -> KeyRing:
    return KeyRing([NamedKey(name="alice", key=ALICE, where=""), NamedKey(name="bob", key=BOB, where="")])


@pytest.mark.parametrize("scheme", [b"Bearer ", b"bearer ", b"BEARER   "])
def test_a_known_key_is_its_tenant(scheme):
    assert ring().tenant_of([scheme + ALICE.encode()]).name == "alice"


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [b""],
        [b"Bearer"],
        [b"Bearer "],
        [b"Bearer  "],
        [b"Bearer " + ALICE[:-1].encode()],
        [b"Bearer " + ALICE.encode() + b"x"],
        [b"Bearer " + ALICE.upper().encode()],
        [b"Bearer " + ALICE.encode() + b" "],
        [b"Bearer " + ALICE.encode() + b"\0"],
        [b"Bearer " + ALICE.encode() + b"," + BOB.encode()],
        [b"Bearer " + ALICE.encode(), b"Bearer " + BOB.encode()],
        [b"Bearer " + ALICE.encode(), b"Bearer " + ALICE.encode()],
        [b" Bearer " + ALICE.encode()],
        [b"Bearer\t" + ALICE.encode()],
        [b"Basic " + ALICE.encode()],
        [b"Token " + ALICE.encode()],
        [ALICE.encode()],
        [b"Bearer \xff\xfe"],
        [b"Bearer alice"],
        [b"Bearer " + b"a" * 100_000],
    ],
)
def test_whoever_has_no_known_key_is_nobody(headers):
    assert ring().tenant_of(headers) is None


def test_every_key_has_its_own_salt_which_is_not_the_key_and_changes_with_the_process():
    first, second = ring(), ring()
    salts = [one.tenant_of(bearer(key)).salt for one in (first, second) for key in (ALICE, BOB)]
    assert len(set(salts)) == 4
    assert all(len(salt) == 64 and ALICE not in salt and BOB not in salt for salt in salts)
    assert ALICE not in repr(vars(first))


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_this_machine_alone_may_be_served_without_keys(host):
    assert is_loopback(host)
    check_exposure(host, KeyRing([]), allows_anyone=False)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.org", "127.0.0.1.example.org", ""])
def test_an_address_for_others_needs_keys_or_a_clear_word(host):
    with pytest.raises(ConfigError, match="--allow-anyone"):
        check_exposure(host, KeyRing([]), allows_anyone=False)
    check_exposure(host, ring(), allows_anyone=False)
    check_exposure(host, KeyRing([]), allows_anyone=True)
