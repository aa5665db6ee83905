"""Trees of releases on a host: unpacked as a whole, the way back, kills, full disks, hostile archives, local users."""

from __future__ import annotations

import gzip
import io
import os
import stat
import struct
import subprocess
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.agent_disk import Disk, file_of, goal_of
from tests.support.patience import until
from tests.unit.client.agent.test_releases import hidden, killed_at, put, reported, script
from tests.unit.client.conftest import StartAgent
from tests.unit.client.fakes import AgentApi, sha256
from tidegate_client.agent import releases, trees
from tidegate_client.agent.disk import remove_below
from tidegate_client.agent.releases import Hook, HostReleases
from tidegate_client.agent.trees import RefusedArchive, unpack

ME = (os.geteuid(), os.getegid())
NOBODY = 65534


def member(
    name: str, content: bytes = b"", kind: bytes = tarfile.REGTYPE, **more: Any
) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size, info.type, info.mode, info.mtime = len(content), kind, 0o644, 1_700_000_000
    for field, value in more.items():
        setattr(info, field, value)
    return info, content


def tar(*members: tuple[tarfile.TarInfo, bytes], compressed: bool = True) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz" if compressed else "w", format=tarfile.PAX_FORMAT) as archive:
        for info, content in members:
            archive.addfile(info, io.BytesIO(content))
    return made.getvalue()


def zipped(**contents: bytes) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in contents.items():
            archive.writestr(name.replace("__", "/"), content)
    return made.getvalue()


def app(text: str) -> bytes:
    return tar(
        member("./bin", kind=tarfile.DIRTYPE, mode=0o2775),
        member("./bin/run", f"run {text}".encode(), mode=0o777),
        member("./conf/app.conf", text.encode(), mode=0o640),
        member("./conf/link", kind=tarfile.SYMTYPE, linkname="../bin/run"),
    )


ONE, TWO, THREE = app("one"), app("two"), app("three")


def tree_of(content: bytes, unpack: str = "tar", **more: Any) -> dict[str, Any]:
    return file_of(content, "app.tar.gz", mode=None, unpack=unpack, target_file_dir="/srv/app", **more)


def text(root: Path) -> str:
    return (root / "srv/app/current/conf/app.conf").read_text()


def leads(link: Path) -> str:
    return str(link.readlink())


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def left_over(root: Path) -> list[str]:
    return [name for directory in (root / "srv/app", root / "srv/app/releases") for name in hidden(directory)]


# --- the whole agent


def test_archive_becomes_a_tree_behind_a_symlink(api: AgentApi, start_agent: StartAgent, root: Path) -> None:
    put(api, goal_of(1, tree_of(ONE)), contents=(ONE,))
    start_agent()
    reported(api, 1, "current")
    base = root / "srv/app"
    assert leads(base / "current") == "releases/1"
    assert text(root) == "one"
    assert (base / "current/conf/link").read_text() == "run one"
    modes = [stat.S_IMODE((base / "current" / name).stat().st_mode) for name in ("", "bin", "bin/run", "conf/app.conf")]
    assert [oct(mode) for mode in modes] == ["0o755", "0o755", "0o755", "0o640"]
    assert (base / "current/bin/run").stat().st_mtime == 1_700_000_000
    assert left_over(root) == []


def test_zip_is_unpacked_too(api: AgentApi, start_agent: StartAgent, root: Path) -> None:
    content = zipped(conf__app_conf=b"zipped")
    put(api, goal_of(1, tree_of(content, "zip")), contents=(content,))
    start_agent()
    reported(api, 1, "current")
    assert (root / "srv/app/current/conf/app_conf").read_bytes() == b"zipped"


def test_going_back_to_a_kept_tree_moves_no_byte(api: AgentApi, start_agent: StartAgent, root: Path) -> None:
    put(api, goal_of(1, tree_of(ONE)), contents=(ONE, TWO))
    start_agent()
    reported(api, 1, "current")
    api.goals = [goal_of(2, tree_of(TWO))]
    reported(api, 2, "current")
    assert text(root) == "two"
    api.goals = [goal_of(3, tree_of(ONE))]
    reported(api, 3, "current")
    assert (text(root), leads(root / "srv/app/current")) == ("one", "releases/1")
    assert len(api.transfers) == 2


def test_only_kept_trees_stay(api: AgentApi, start_agent: StartAgent, root: Path) -> None:
    contents = tuple(app(str(number)) for number in range(1, 6))
    put(api, contents=contents)
    start_agent()
    for number, content in enumerate(contents, 1):
        api.goals = [goal_of(number, tree_of(content), keep=2)]
        reported(api, number, "current")
    until(lambda: names(root / "srv/app/releases") == ["3", "4", "5"])


def test_failing_hook_leads_back_to_the_former_tree(
    api: AgentApi, start_agent: StartAgent, root: Path, tmp_path: Path
) -> None:
    hook = script(tmp_path, "reload", f"! grep -q two {root}/srv/app/current/conf/app.conf")
    put(api, goal_of(1, tree_of(ONE), hook="reload"), contents=(ONE, TWO))
    start_agent(hooks={"reload": Hook(hook)})
    reported(api, 1, "current")
    api.goals = [goal_of(2, tree_of(TWO), file_of(ONE, "extra"), hook="reload")]
    said = reported(api, 2, "failed")
    assert (text(root), said["placed"], "checked_at" in said) == ("one", 1, True)
    assert not (root / "data/extra").exists()


def test_changed_tree_is_reported_and_healed(
    api: AgentApi, start_agent: StartAgent, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(releases, "DRIFT_EVERY", 0.2)
    put(api, goal_of(1, tree_of(ONE)), contents=(ONE,))
    running = start_agent()
    reported(api, 1, "current")
    (root / "srv/app/current/conf/app.conf").write_text("by hand")
    (root / "srv/app/current/added").write_text("programs write beside their files")
    assert reported(api, 1, "drifted")["drift"] == ["/srv/app/current/conf/app.conf: its content was changed"]
    api.goals = [goal_of(1, tree_of(ONE), heal=True)]
    running.agent._releases.trigger()
    until(lambda: text(root) == "one")
    until(lambda: api.asks[-1]["releases"][0]["state"] == "current")
    until(lambda: names(root / "srv/app/releases") == ["1-2"])


def test_changed_tree_is_asked_for_again_though_a_transfer_came(tmp_path: Path) -> None:
    """The transfer began before the host had read the tree: it found the tree here, and brought nothing."""
    disk = Disk(tmp_path)
    life(disk, goal_of(1, tree_of(ONE)), contents=(ONE,))
    (disk.root / "srv/app/current/conf/app.conf").write_text("by hand")
    disk.api = [goal_of(1, tree_of(ONE), heal=True, sending=[sha256(ONE)])]
    with disk.life() as host:
        host._look_for_drift()
        host._wake.clear()
        host._round()
        assert (host._wake.is_set(), host._needs_asking()) == (True, True)
        assert sha256(ONE) not in host._coming


def test_plain_transfer_into_a_tree_is_refused(api: AgentApi, start_agent: StartAgent, root: Path) -> None:
    put(api, goal_of(1, tree_of(ONE)), contents=(ONE,))
    start_agent()
    reported(api, 1, "current")
    plain = api.add("app.conf", TWO, object=sha256(TWO), sequence=99, target_file_dir="/srv/app/current/conf")
    api.store.objects[sha256(TWO)] = TWO
    assert api.wait_for(plain)["error_code"] == 1010
    assert text(root) == "one"


# --- one disk, several lives


def life(disk: Disk, *goals: dict[str, Any], contents: tuple[bytes, ...] = ()) -> Any:
    disk.api = list(goals)
    return _converged(disk, contents)


def _converged(disk: Disk, contents: tuple[bytes, ...]) -> list[dict[str, Any]]:
    with disk.life() as host:
        for content in contents:
            bring(disk, host, content)
        host._round()
    return disk.told[-1]


def bring(disk: Disk, host: HostReleases, content: bytes) -> None:
    file = tree_of(content)
    with host._place(file) as place, host.delivery.partials.opened(place, ("h", sha256(content))) as part:
        part.file.write(content)
        part.file.flush()
        host.delivery.journal.keep(place.path, sha256(content), part.hidden)


def test_agent_killed_at_any_step_ends_with_whole_trees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At every call that changes the disk or the journal; afterwards nothing unknown is left on the disk."""
    kills, ended = 0, False
    while not ended:
        disk = Disk(tmp_path / str(kills))
        life(disk, goal_of(1, tree_of(ONE), keep=1), contents=(ONE,))
        life(disk, goal_of(2, tree_of(TWO), keep=1), contents=(TWO,))
        ended = _killed_at(disk, kills, monkeypatch)
        assert text(disk.root) in ("two", "three"), kills
        told = _converged(disk, () if _has_tree(disk) else (THREE,))
        assert text(disk.root) == "three", kills
        assert [(one["revision"], one["state"]) for one in told] == [(3, "current")]
        with disk.life() as host:
            host._soak()
            host.delivery.partials._seconds = -1
            host.delivery.partials.sweep()
            host._prune()
        assert left_over(disk.root) == [], kills
        assert len(names(disk.root / "srv/app/releases")) == 2, kills
        kills += 1
    assert kills > 40


def _has_tree(disk: Disk) -> bool:
    with disk.life() as host:
        return any(row.signature == sha256(THREE) for row in host.delivery.journal.trees()) or any(
            signature == sha256(THREE) for _, signature in host.delivery.journal.kept()
        )


def _killed_at(disk: Disk, number: int, monkeypatch: pytest.MonkeyPatch) -> bool:
    disk.api = [goal_of(3, tree_of(THREE), keep=1)]
    with disk.life() as host:
        bring(disk, host, THREE)
        return killed_at(
            monkeypatch,
            number,
            ("rename", "link", "symlink", "unlink", "mkdir", "rmdir", "fchmod", "chown"),
            ("save_release", "drop_kept", "keep_tree", "drop_tree", "part_opened", "part_closed"),
            host._round,
        )


def test_full_disk_while_unpacking_leaves_the_former_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(tmp_path)
    life(disk, goal_of(1, tree_of(ONE)), contents=(ONE,))
    monkeypatch.setattr(trees, "RESERVE_BYTES", 2**62)
    told = life(disk, goal_of(2, tree_of(TWO)), contents=(TWO,))
    assert told[0]["state"] == "failed"
    assert "No space left" in told[0]["reason"]
    assert text(disk.root) == "one"
    assert names(disk.root / "srv/app/releases") == ["1"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    where = tmp_path / "small"
    where.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", where], capture_output=True).returncode:
        pytest.skip("needs root, to mount a small disk")
    yield where
    subprocess.run(["umount", "-l", where], check=True)


def test_disk_that_really_fills_loses_nothing(small_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trees, "RESERVE_BYTES", 0)
    disk = Disk(small_disk)
    life(disk, goal_of(1, tree_of(ONE)), contents=(ONE,))
    large = tar(member("big", b"\0" * 2_000_000), member("conf/app.conf", b"x"))
    told = life(disk, goal_of(2, tree_of(large)), contents=(large,))
    assert (told[0]["state"], "No space left" in told[0]["reason"]) == ("failed", True)
    assert text(disk.root) == "one"
    assert names(disk.root / "srv/app/releases") == ["1"]


def test_kept_tree_that_was_changed_is_fetched_again(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    life(disk, goal_of(1, tree_of(ONE)), contents=(ONE,))
    life(disk, goal_of(2, tree_of(TWO)), contents=(TWO,))
    (disk.root / "srv/app/releases/1/conf/app.conf").write_text("by hand")
    [told] = life(disk, goal_of(3, tree_of(ONE)))
    assert (told["revision"], told["state"]) == (2, "current")
    assert life(disk, goal_of(3, tree_of(ONE)), contents=(ONE,))[0]["revision"] == 3
    assert (text(disk.root), leads(disk.root / "srv/app/current")) == ("one", "releases/3")


def test_directory_in_the_place_of_the_symlink_fails_the_revision(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    (disk.root / "srv/app/current").mkdir(parents=True)
    told = life(disk, goal_of(1, tree_of(ONE)), contents=(ONE,))
    assert (told[0]["state"], "not a symlink" in told[0]["reason"]) == ("failed", True)
    assert (disk.root / "srv/app/current").is_dir()


def test_symlink_of_before_the_release_comes_back(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    (disk.root / "srv/app/by-hand").mkdir(parents=True)
    (disk.root / "srv/app/current").symlink_to("by-hand")
    with disk.life() as host:
        host.hooks = {"fails": Hook(script(tmp_path, "fails", "exit 1"))}
        bring(disk, host, ONE)
        disk.api = [goal_of(1, tree_of(ONE), hook="fails")]
        host._round()
    assert leads(disk.root / "srv/app/current") == "by-hand"


def test_content_that_changed_behind_the_clock_is_found_by_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(tmp_path)
    life(disk, goal_of(1, tree_of(ONE), file_of(ONE, "plain")), contents=(ONE,))
    with disk.life() as host:
        disk.bring(host, ONE, "plain")
        host._round()
        # As a disk that returns other bytes.
        plain, inside = disk.root / "data/plain", disk.root / "srv/app/current/conf/app.conf"
        before = plain.stat()
        plain.write_bytes(b"x" * len(ONE))
        os.utime(plain, ns=(before.st_atime_ns, before.st_mtime_ns))
        inside.write_text("xxx")
        row = host.delivery.journal.trees()[0]
        entries = trees.from_blob(host.delivery.journal.entries_of(row))
        next(one for one in entries if one.path == "conf/app.conf").seen = trees._seen(inside.lstat())
        host.delivery.journal.keep_tree(row, trees.to_blob(entries))
        host._look_for_drift()
        assert host._states["app"].drift == ()
        assert [host._reads_right(file) for file in host._states["app"].files] == [False, False]
        host._suspects = {(file["target_file_dir"], file["signature"]) for file in host._states["app"].files}
        host._look_for_drift()
        assert len(host._states["app"].drift) == 2


# --- hostile archives


def unpacked(tmp_path: Path, content: bytes, kind: str = "tar") -> Path:
    """Unpacks as the agent does; the caller looks at what is beside it too."""
    target = tmp_path / "target"
    target.mkdir()
    root = os.open(target, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with io.FileIO(os.memfd_create("archive"), "w+") as raw:
            raw.write(content)
            raw.seek(0)
            unpack(io.BufferedRandom(raw), kind, root, ME)
    finally:
        os.close(root)
    return target


def _global_headers() -> bytes:
    """Small ones, which tarfile collects: a gigabyte in its memory would be a megabyte as gzip."""
    made = io.BytesIO()
    for number in range(30):
        made.write(tarfile.TarInfo.create_pax_global_header({f"k{number}": "x" * 50_000}))
        made.write(member(f"f{number}")[0].tobuf())
    return gzip.compress(made.getvalue() + bytes(1024))


def _slow_links() -> bytes:
    """Each leads over 39 others, and each of those goes to and fro."""
    there = [member("a", kind=tarfile.DIRTYPE)]
    chain = [member(f"l{number}", linkname="a/../" * 190 + f"l{number + 1}", **LINK) for number in range(39)]
    ends = [member(f"e{number}", linkname="l0", **LINK) for number in range(300)]
    return tar(*there, *chain, member("l39", b"x"), *ends)


def _pax_bomb() -> bytes:
    """A header of a gigabyte, which is a megabyte as gzip."""
    info = tarfile.TarInfo("./PaxHeaders/x")
    info.type, info.size = tarfile.XHDTYPE, 2**30
    made = io.BytesIO()
    with gzip.GzipFile(fileobj=made, mode="wb", compresslevel=1) as file:
        file.write(info.tobuf())
        for _ in range(40):
            file.write(bytes(2**20))
    return made.getvalue()


def _sparse() -> bytes:
    raw = bytearray(member("sparse", kind=tarfile.GNUTYPE_SPARSE)[0].tobuf(tarfile.GNU_FORMAT))
    raw[386:398] = b"00000000000\0"
    raw[398:410] = b"00000000000\0"
    raw[483:495] = b"77777777777\0"
    raw[148:156] = b"        "
    raw[148:156] = b"%06o\0 " % sum(raw[:512])
    return bytes(raw) + bytes(1024)


def _hard_linked() -> bytes:
    return tar(member("a", b"x"), member("b", kind=tarfile.LNKTYPE, linkname="../../etc/passwd"))


def _zip_link(target: str) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        info = zipfile.ZipInfo("link")
        info.create_system, info.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
        archive.writestr(info, target)
    return made.getvalue()


LINK = {"kind": tarfile.SYMTYPE}
HOSTILE: dict[str, tuple[bytes, str]] = {
    "absolute": (tar(member("/etc/cron.d/x", b"x")), "absolute"),
    "above": (tar(member("../x", b"x")), r"'\.\.'"),
    "above inside": (tar(member("a/../../x", b"x")), r"'\.\.'"),
    "absolute link": (tar(member("l", linkname="/etc", **LINK)), "leads to"),
    "link above": (tar(member("a/l", linkname="../../etc", **LINK)), "leads out"),
    "link over a link": (
        tar(member("a/b/c/up", linkname="../../..", **LINK), member("y", linkname="a/b/c/up/..", **LINK)),
        "leads out",
    ),
    "links in a circle": (tar(member("a", linkname="b", **LINK), member("b", linkname="a/x", **LINK)), "to itself"),
    "through a link": (tar(member("l", linkname="sub", **LINK), member("l/x", b"x")), "something else"),
    "link over a file": (tar(member("l", b"x"), member("l", linkname="sub", **LINK)), "twice"),
    "hard link out": (_hard_linked(), r"'\.\.'"),
    "hard link to a link": (
        tar(member("l", linkname="a", **LINK), member("h", kind=tarfile.LNKTYPE, linkname="l")),
        "hard link to no file",
    ),
    "device": (tar(member("sda", kind=tarfile.BLKTYPE)), "no file, directory or link"),
    "fifo": (tar(member("fifo", kind=tarfile.FIFOTYPE)), "no file, directory or link"),
    "setuid": (tar(member("su", b"x", mode=0o4755)), "setuid"),
    "setgid": (tar(member("sg", b"x", mode=0o2755)), "setuid or setgid"),
    "twice": (tar(member("a", b"x"), member("./a", b"y")), "twice"),
    "capitals": (tar(member("A/x", b"x"), member("a/x", b"y")), "capitals"),
    "control": (tar(member("a\nERROR forged", b"x")), "printed"),
    "not UTF-8": (tar(member(os.fsdecode(b"\xff\xfe"), b"x")), "UTF-8|cannot be read"),
    "long name": (tar(member("n" * 300, b"x")), "too long"),
    "deep": (tar(member("d/" * 70 + "x", b"x")), "deep"),
    "long path": (tar(member("/".join(["n" * 200] * 6), b"x")), "long"),
    "sparse": (_sparse(), "sparse"),
    "large header": (_pax_bomb(), "header that is too large"),
    "cut short": (gzip.compress(gzip.decompress(app("x"))[:1100]), "cannot be read|cut short"),
    "damaged": (app("x" * 10_000)[:150], "cannot be read|cut short"),
    "no archive": (b"\x1f\x8bnothing", "cannot be read"),
    "empty": (tar(), "empty"),
    "long link": (tar(member("l", linkname="x/" * 100_000, **LINK)), "symlink that is too long"),
    "accents": (tar(member("\u00e9", b"x"), member("e\u0301", b"y")), "accents"),
    "collected headers": (_global_headers(), "header that is too large"),
    "links to follow for hours": (_slow_links(), "too long to follow"),
    "text": (b"hello" * 1000, "cannot be read"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_archive_is_refused_and_writes_nothing_outside(tmp_path: Path, name: str) -> None:
    content, reason = HOSTILE[name]
    with pytest.raises(RefusedArchive, match=reason):
        unpacked(tmp_path, content)
    assert names(tmp_path) == ["target"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (zipped(**{"..__x": b"x"}), r"'\.\.'"),
        (zipped(__etc__x=b"x"), "absolute"),
        (_zip_link("/etc/passwd"), "leads to"),
        (_zip_link("../x"), "leads out"),
        (zipped(a=b"x")[:-10], "cannot be read"),
        (b"PK\x05\x06" + b"\0" * 6 + b"\xff\xff" + b"\xff" * 8 + b"\0\0", "cannot be read|too large"),
    ],
    ids=["above", "absolute", "link", "link above", "cut", "large directory"],
)
def test_hostile_zip_is_refused(tmp_path: Path, content: bytes, reason: str) -> None:
    with pytest.raises(RefusedArchive, match=reason):
        unpacked(tmp_path, content, "zip")
    assert names(tmp_path) == ["target"]


def test_zip_with_a_directory_of_millions_is_refused_before_it_is_parsed(tmp_path: Path) -> None:
    """Each entry becomes an object of half a kilobyte: the service would be killed for its memory, again and again."""
    count = 400_000
    entry = struct.pack("<4s4B4HL2L5H2L", b"PK\x01\x02", 20, 3, 20, 0, *[0] * 4, *[0] * 3, 1, *[0] * 4, 0, 0) + b"x"
    end = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 0xFFFE, 0xFFFE, count * len(entry), 0, 0)

    with pytest.raises(RefusedArchive, match="directory is too large"):
        unpacked(tmp_path, entry * count + end, "zip")


def test_zip_whose_content_was_changed_is_refused(tmp_path: Path) -> None:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("a", b"content")
    with pytest.raises(RefusedArchive, match="CRC"):
        unpacked(tmp_path, made.getvalue().replace(b"content", b"changed"), "zip")


def test_bomb_stops_at_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trees, "MOST_BYTES", 10 * 2**20)
    for number, (kind, content) in enumerate(
        [("tar", tar(member("zeros", bytes(11 * 2**20)))), ("zip", zipped(zeros=bytes(11 * 2**20)))]
    ):
        (tmp_path / str(number)).mkdir()
        with pytest.raises(RefusedArchive, match="more than 10485760 bytes"):
            unpacked(tmp_path / str(number), content, kind)


def test_too_many_entries_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trees, "MOST_ENTRIES", 20)
    with pytest.raises(RefusedArchive, match="more than 20 entries"):
        unpacked(tmp_path, tar(*(member(f"f{number}", b"") for number in range(21))))


def test_links_and_hard_links_inside_are_kept(tmp_path: Path) -> None:
    content = tar(
        member("a/file", b"x", mode=0o755),
        member("a/again", kind=tarfile.LNKTYPE, linkname="a/file"),
        member("b/link", linkname="../a/./file", **LINK),
        member("b/dangling", linkname="not-there", **LINK),
    )
    target = unpacked(tmp_path, content)
    assert (target / "b/link").read_bytes() == (target / "a/again").read_bytes() == b"x"
    assert leads(target / "b/dangling") == "not-there"


# --- local users


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to act as another user")
def test_removing_a_tree_follows_nothing_that_its_user_put_there(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("root's")
    tree = tmp_path / "tree"
    (tree / "deep").mkdir(parents=True)
    (tree / "link").symlink_to(precious)
    (tree / "moved").mkdir()
    (tree / "moved/file").write_text("root's, moved here by the user")
    for path in (tree, tree / "deep", tree / "link"):
        os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
    above = os.open(tmp_path, os.O_RDONLY)
    try:
        with pytest.raises(OSError, match="another user"):
            remove_below(above, "tree", (NOBODY,))
    finally:
        os.close(above)
    assert (precious / "file").exists()
    assert (tree / "moved/file").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to act as another user")
def test_owner_of_the_directory_cannot_enter_a_tree_while_it_is_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user owns the directory, and tries as itself to read and to replace what is unpacked."""
    disk = Disk(tmp_path)
    tmp_path.chmod(0o755)
    (disk.root / "srv/app/releases").mkdir(parents=True)
    for path in (disk.root / "srv/app", disk.root / "srv/app/releases"):
        os.chown(path, NOBODY, NOBODY)
    seen: list[int] = []
    real = os.symlink

    def attack(*args: Any, **more: Any) -> None:
        real(*args, **more)
        for name in hidden(disk.root / "srv/app/releases"):
            where = disk.root / "srv/app/releases" / name
            done = subprocess.run(["ls", where], user=NOBODY, group=NOBODY, capture_output=True, check=False)
            seen.append(done.returncode)

    monkeypatch.setattr(os, "symlink", attack)
    with disk.life() as host:
        file = tree_of(ONE) | {"target_user": "nobody"}
        with host._place(file) as place, host.delivery.partials.opened(place, ("h", sha256(ONE))) as part:
            part.file.write(ONE)
            part.file.flush()
            host.delivery.journal.keep(place.path, sha256(ONE), part.hidden)
        disk.api = [goal_of(1, file)]
        host._round()
    assert seen
    assert all(seen)
    assert (disk.root / "srv/app/current/conf/app.conf").stat().st_uid == NOBODY
