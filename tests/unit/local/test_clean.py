"""`make clean` deletes the state of a stopped cloud, and refuses while it runs."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from local.__main__ import clean
from local.cloud import cloud_up
from local.place import Place, alone
from local.progress import Failure


def silence(_text: str) -> None:
    """Prints nothing."""


def left_behind(home: Path, port: int) -> Place:
    place = Place(home=home, port=1, params={})
    place.state_dir.mkdir(parents=True)
    place.cloud_file.write_text(json.dumps({"endpoint_url": f"http://127.0.0.1:{port}"}))
    return place


def test_running_cloud_is_not_forgotten(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as emulator:
        place = left_behind(tmp_path, emulator.getsockname()[1])
        with pytest.raises(Failure, match="still running"):
            clean(place)
    assert place.state_dir.exists()


def test_stopped_cloud_is_forgotten(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as emulator:
        port = emulator.getsockname()[1]
    place = left_behind(tmp_path, port)

    assert clean(place) == 0
    assert not place.state_dir.exists()
    assert not place.cloud_file.exists()


def test_second_run_in_the_folder_of_a_running_cloud_changes_nothing(tmp_path: Path) -> None:
    """It removed cloud.json before it failed at the port, and `make clean` then took the state of the running one."""
    place = left_behind(tmp_path, 1)
    with alone(place):
        with pytest.raises(Failure, match="still running"), cloud_up(Place(home=tmp_path, port=2), silence):
            pytest.fail("it must not start")
        with pytest.raises(Failure, match="still running"):
            clean(place)

    assert place.cloud_file.exists()
    assert place.state_dir.exists()
