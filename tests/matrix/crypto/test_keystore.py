# What others may do to us is made from the inside of their machine
# pyright: reportPrivateUsage=false

import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import vodozemac
from nio.crypto import InboundGroupSession, OlmAccount, OutboundSession

from bridge.core.errors import KeysDamaged, KeysLost
from bridge.matrix.crypto import keystore
from bridge.matrix.crypto.keystore import DATABASE, DAY_MS, PICKLE_KEY, KeyStore, RoomKey
from bridge.matrix.crypto.olm import Letters

USER, DEVICE = "@bot:hs", "BOT"
NOW = 1_800_000_000_000


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "crypto"


@pytest.fixture
def store(folder: Path) -> Iterator[KeyStore]:
    made = KeyStore(folder, USER, DEVICE, create=True)
    Letters(made, USER, DEVICE)
    yield made
    made.close()


def reopened(folder: Path, store: KeyStore) -> KeyStore:
    store.close()
    return KeyStore(folder, USER, DEVICE, create=False)


def room_key(sender_key: str = "alice", *, outbound: vodozemac.GroupSession | None = None) -> RoomKey:
    session = InboundGroupSession(
        (outbound or vodozemac.GroupSession()).session_key.to_base64(), "ed", sender_key, "!r"
    )
    return RoomKey(room="!r", session=session, sender_key=sender_key, signing_key="ed")


def kept(store: KeyStore, *keys: RoomKey) -> list[bool]:
    return [bool(store.room_keys("!r", key.session.id)) for key in keys]


def make_session(account: OlmAccount, created: str) -> OutboundSession:
    other = OlmAccount()
    other.generate_one_time_keys(1)
    (one_time_key,) = other.one_time_keys["curve25519"].values()
    session = OutboundSession(account, other.identity_keys["curve25519"], one_time_key)
    session.creation_time = session.use_time = datetime.fromisoformat(created)
    return session


# ------------------------------------------------------------------------------------------------------------ the files


def test_the_rows_that_we_write_are_those_that_nio_would(tmp_path: Path) -> None:
    """It reads them at the next start, and a later nio brings them into its newer form."""
    rows: list[object] = []
    account = OlmAccount()
    session = make_session(account, "2026-01-02 03:04:05.000678")
    for by_nio in (True, False):
        store = KeyStore(tmp_path / str(by_nio), USER, DEVICE, create=True)
        nio: Any = super(type(store.nio), store.nio) if by_nio else store.nio
        for _ in range(2):
            account.shared = not account.shared
            nio.save_account(account)
            nio.save_session("curve", session)
        store.close()
        with closing(sqlite3.connect(tmp_path / str(by_nio) / DATABASE)) as file:
            accounts = file.execute("SELECT id, user_id, device_id, shared, typeof(account) FROM accounts").fetchall()
            sessions = file.execute(
                "SELECT session_id, account_id, sender_key, creation_time, last_usage_date, typeof(session)"
                " FROM olmsessions"
            ).fetchall()
        rows.append((accounts, sessions))
    assert rows[0] == rows[1]


def test_a_session_of_a_full_second_can_be_read_at_the_next_start(store: KeyStore, folder: Path) -> None:
    """nio leaves a fraction of zero out, and reads no time without one: one session in a million, and no start at all."""
    account = store.nio.load_account()
    assert account is not None
    store.nio.save_session("curve", make_session(account, "2026-01-02 03:04:05"))
    again = reopened(folder, store)
    (session,) = again.nio.load_sessions()["curve"]
    again.close()
    assert session.creation_time == datetime.fromisoformat("2026-01-02 03:04:05")


def test_no_file_can_be_read_by_others_whatever_the_umask_says(folder: Path) -> None:
    """Rule 21: the journals too, and from the first byte, for nobody may read what was there for a moment."""
    before = keystore.os.umask(0)
    try:
        store = KeyStore(folder, USER, DEVICE, create=True)
        Letters(store, USER, DEVICE)
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (folder, *folder.iterdir())}
        store.close()
    finally:
        keystore.os.umask(before)
    assert {
        "crypto": 0o700,
        DATABASE: 0o600,
        DATABASE + "-wal": 0o600,
        DATABASE + "-shm": 0o600,
        PICKLE_KEY: 0o600,
    } == modes


def test_the_database_is_there_and_closed_before_nio_opens_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def look(*_: object, **__: object) -> None:
        seen.append(stat.S_IMODE((folder / DATABASE).stat().st_mode))
        raise OSError

    monkeypatch.setattr(keystore, "_Store", look)
    with pytest.raises(KeysDamaged):
        KeyStore(folder, USER, DEVICE, create=True)
    assert [0o600] == seen


def test_a_folder_that_was_open_to_others_is_closed(folder: Path) -> None:
    folder.mkdir(mode=0o755)
    folder.chmod(0o755)
    KeyStore(folder, USER, DEVICE, create=True).close()
    assert 0o700 == stat.S_IMODE(folder.stat().st_mode)


def test_each_store_has_a_pickle_key_of_its_own(tmp_path: Path) -> None:
    stores = [KeyStore(tmp_path / name, USER, DEVICE, create=True) for name in "ab"]
    for store in stores:
        store.close()
    keys = {store.passphrase for store in stores}
    assert (2, False) == (len(keys), "DEFAULT_KEY" in keys)


# --------------------------------------------------------------------------------------------------------- lost, damaged


@pytest.mark.usefixtures("store")
def test_keys_exist_for_the_device_that_they_are_of(folder: Path) -> None:
    assert [True, False, False] == [
        keystore.exists(folder, user, device) for user, device in ((USER, DEVICE), (USER, "OTHER"), ("@eve:hs", DEVICE))
    ]


def test_no_keys_exist_in_an_empty_folder(folder: Path) -> None:
    before = keystore.exists(folder, USER, DEVICE)
    folder.mkdir()
    (folder / DATABASE).touch()
    assert [False, False] == [before, keystore.exists(folder, USER, DEVICE)]


def test_no_keys_exist_where_the_first_start_broke_off(folder: Path) -> None:
    """The tables were made, the account was not."""
    KeyStore(folder, USER, DEVICE, create=True).close()
    assert not keystore.exists(folder, USER, DEVICE)
    KeyStore(folder, USER, DEVICE, create=True).close()


def test_missing_keys_are_lost_and_not_made_anew(folder: Path) -> None:
    with pytest.raises(KeysLost, match="BOT"):
        KeyStore(folder, USER, DEVICE, create=False)
    assert not folder.exists()


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize("create", [False, True])
def test_the_keys_of_another_device_are_not_ours(folder: Path, create: bool) -> None:
    with pytest.raises(KeysLost, match="NEW"):
        KeyStore(folder, USER, "NEW", create=create)


@pytest.mark.parametrize("damage", ["database", "no pickle key", "folder"])
def test_what_cannot_be_read_is_damaged(folder: Path, store: KeyStore, damage: str) -> None:
    store.close()
    match damage:
        case "database":
            (folder / DATABASE).write_bytes(b"no database" * 100)
        case "no pickle key":
            (folder / PICKLE_KEY).unlink()
        case _:
            (folder / DATABASE).unlink()
            (folder / DATABASE).mkdir()
    with pytest.raises(KeysDamaged):
        KeyStore(folder, USER, DEVICE, create=False)


def test_discarded_keys_are_gone_and_nothing_else(folder: Path, store: KeyStore) -> None:
    (folder / "others").touch()
    store.close()
    keystore.discard(folder)
    keystore.discard(folder)
    assert (["others"], False) == ([path.name for path in folder.iterdir()], keystore.exists(folder, USER, DEVICE))


def test_discarding_where_nothing_is_does_nothing(folder: Path) -> None:
    keystore.discard(folder)
    assert not folder.exists()


def test_a_full_disk_is_told_in_our_words(store: KeyStore) -> None:
    store._sql.execute("PRAGMA max_page_count = 1")
    with pytest.raises(KeysDamaged):
        store.note("large", "x" * 1_000_000)


# ------------------------------------------------------------------------------------------------------------ room keys


def test_a_room_key_is_there_after_a_restart(folder: Path, store: KeyStore) -> None:
    outbound = vodozemac.GroupSession()
    store.keep_room_key(room_key(outbound=outbound), NOW)
    again = reopened(folder, store)
    (found,) = again.room_keys("!r", outbound.session_id)
    again.close()
    text, index = found.session.decrypt(outbound.encrypt(b"1").to_base64())
    assert ("1", 0, "alice", "ed") == (text, index, found.sender_key, found.signing_key)


def test_the_key_that_opens_more_stays(store: KeyStore) -> None:
    outbound = vodozemac.GroupSession()
    early = room_key(outbound=outbound)
    outbound.encrypt(b"1")
    late = room_key(outbound=outbound)
    told = [store.keep_room_key(key, NOW) for key in (late, early, late, early)]
    assert ([True, True, False, False], 0) == (
        told,
        store.room_keys("!r", outbound.session_id)[0].session.first_known_index,
    )


def test_one_key_from_two_devices_is_two(store: KeyStore) -> None:
    outbound = vodozemac.GroupSession()
    for number, sender in enumerate(("alice", "mallory")):
        store.keep_room_key(room_key(sender, outbound=outbound), NOW + number)
    assert ["alice", "mallory"] == [key.sender_key for key in store.room_keys("!r", outbound.session_id)]


def test_a_message_is_for_ever_the_event_that_it_was_first(folder: Path, store: KeyStore) -> None:
    key = room_key()
    store.keep_room_key(key, NOW)
    first = [store.read_as(key, 0, event_id, NOW) for event_id in ("$a", "$b", "$a")]
    again = reopened(folder, store)
    found = (first, again.read_as(key, 0, "$c", NOW), again.read_as(key, 1, "$c", NOW))
    again.close()
    assert (["$a", "$a", "$a"], "$a", "$c") == found


def test_what_fails_half_way_is_not_kept(store: KeyStore) -> None:
    key = room_key()
    with suppress(ZeroDivisionError), store.atomic():
        store.keep_room_key(key, NOW)
        raise ZeroDivisionError
    assert [False] == kept(store, key)


def test_notices_of_withheld_keys_are_bounded(store: KeyStore) -> None:
    for number in range(keystore.WITHHELD_MOST + 1):
        store.keep_withheld("@a:hs", "!r", str(number))
    assert [False, True, True] == [
        store.is_withheld("@a:hs", "!r", str(number)) for number in (0, 1, keystore.WITHHELD_MOST)
    ]


# --------------------------------------------------------------------------------------------------------------- ageing


def test_keys_that_we_sent_under_are_dropped_after_a_month(store: KeyStore) -> None:
    old, new = room_key("ours"), room_key("ours")
    store.keep_room_key(old, NOW - 31 * DAY_MS)
    store.keep_room_key(new, NOW)
    store.age("ours", NOW)
    assert [False, True] == kept(store, old, new)


def test_keys_of_others_are_dropped_half_a_year_after_their_last_use_and_do_not_come_back(store: KeyStore) -> None:
    """With them goes what was read by them: had they come back, old messages could be read anew, as other events."""
    old, used = room_key(), room_key()
    for key in (old, used):
        store.keep_room_key(key, NOW - 400 * DAY_MS)
        store.read_as(key, 0, "$a", NOW - 200 * DAY_MS)
    store.read_as(used, 1, "$b", NOW)
    store.age("ours", NOW)
    back = store.keep_room_key(old, NOW)
    remembered = store._sql.execute("SELECT count(*) FROM read_messages").fetchone()
    assert ([False, True], False, (2,)) == (kept(store, old, used), back, remembered)


def test_keys_that_open_nothing_are_bounded_and_the_oldest_go(store: KeyStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keystore, "UNUSED_MOST", 2)
    keys = [room_key() for _ in range(4)]
    for number, key in enumerate(keys):
        store.keep_room_key(key, NOW + number)
    store.read_as(keys[0], 0, "$a", NOW)
    store.age("ours", NOW)
    assert [True, False, True, True] == kept(store, *keys)


def test_of_the_sessions_with_one_device_the_newest_stay(store: KeyStore) -> None:
    letters = Letters(store, USER, DEVICE)
    other = vodozemac.Account()
    other.generate_one_time_keys(10)
    curve_key = other.curve25519_key.to_base64()
    for public in other.one_time_keys.values():
        letters._olm.create_session(public.to_base64(), curve_key)
    newest = {session.id for session in letters._olm.session_store[curve_key][: keystore.SESSIONS_MOST]}
    store.age("ours", NOW)
    assert newest == {session.id for session in store.nio.load_sessions()[curve_key]}
