from __future__ import annotations

import socket
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from local.artifacts import folder_zip
from local.emulator import Emulator
from local.place import Place, keep_private, parse_params
from local.progress import Failure
from local.stack import Stack


def test_admin_key_is_made_once_and_is_its_owners_alone(tmp_path: Path) -> None:
    place = Place(home=tmp_path / "home")
    key = place.admin_key()
    assert place.admin_key() == key
    assert stat.S_IMODE((place.home / "admin-key").stat().st_mode) == 0o600


def test_admin_key_that_others_could_read_is_closed(tmp_path: Path) -> None:
    place = Place(home=tmp_path)
    place.admin_key()
    (tmp_path / "admin-key").chmod(0o644)
    place.admin_key()
    assert mode(tmp_path / "admin-key") == 0o600


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_state_that_others_could_read_is_closed_at_the_next_start(tmp_path: Path) -> None:
    folder = tmp_path / "state" / "inner"
    folder.mkdir(parents=True, mode=0o755)
    for path in (folder / "a.json", tmp_path / "state" / "b.json"):
        path.write_text("secret")
        path.chmod(0o644)
    (tmp_path / "state" / "link").symlink_to("/etc/hostname")

    keep_private(tmp_path / "state")

    assert (mode(tmp_path / "state"), mode(folder)) == (0o700, 0o700)
    assert (mode(folder / "a.json"), mode(tmp_path / "state" / "b.json")) == (0o600, 0o600)


def test_parameters_are_read_from_words() -> None:
    assert parse_params("CollectWindowSeconds=3  LogLevel=DEBUG") == {"CollectWindowSeconds": "3", "LogLevel": "DEBUG"}


def test_word_that_is_no_parameter_is_named() -> None:
    with pytest.raises(Failure, match="CollectWindowSeconds"):
        parse_params("CollectWindowSeconds")


def test_parameter_that_the_template_lacks_is_named(tmp_path: Path) -> None:
    with pytest.raises(Failure, match="ColectWindow"):
        Stack(Place(home=tmp_path, params={"ColectWindow": "3"}))


@pytest.mark.parametrize("port", ["http", "0", "70000"])
def test_wrong_port_is_named(port: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PORT", port)
    with pytest.raises(Failure, match=port):
        Place.from_environment()


def test_busy_port_is_named_with_another_to_take(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(Failure) as failure:
            Emulator(Place(home=tmp_path, port=port)).start()
    assert str(port) in failure.value.what
    assert f"PORT={port + 1} make run" in failure.value.advice


def test_same_content_is_the_same_zip(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("x = 1")
    first = folder_zip(tmp_path)
    (tmp_path / "app.py").write_text("x = 1")
    assert folder_zip(tmp_path) == first


def test_named_emulator_is_used_or_reported_if_it_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    place = replace(Place.from_environment(), home=tmp_path)
    assert place.endpoint == "http://127.0.0.1:9"
    with pytest.raises(Failure, match="AWS_ENDPOINT_URL"):
        Emulator(place).start()
