"""One process serves several projects."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.http_servers import free_port
from tests.support.patience import ended
from tests.unit.client.fakes import AGENT, ME, AgentApi, running_api, running_store
from tidegate_client import rates as pace
from tidegate_client.agent import daemon as group_module
from tidegate_client.agent.codes import Code
from tidegate_client.agent.daemon import AgentGroup, GroupNotifier, make_group, merged_metrics
from tidegate_client.agent.disk import Permits
from tidegate_client.agent.options import AgentOptions, Grant
from tidegate_client.cli import main
from tidegate_client.client import Client
from tidegate_client.config import Config, further_login, save

CONTENT = b"of one project or the other " * 5000


@pytest.fixture
def second() -> Iterator[AgentApi]:
    with running_store() as store, running_api(store) as api:
        yield api


@pytest.fixture
def group(
    api: AgentApi, second: AgentApi, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[AgentGroup]:
    monkeypatch.setattr(pace, "SHORTEST_ROUND", 0.1)
    for name in ("data", "shop"):
        (root / name).mkdir()
    options = AgentOptions(
        AGENT,
        root,
        tmp_path / "state",
        wait=1,
        push=False,
        report_every=0.1,
        drain_seconds=2,
        limit_rate=100_000,
        permits=Permits(("/data",)),
        also={"shop": Grant(Permits(("/shop",), frozenset({ME})))},
        metrics=("127.0.0.1", free_port()),
    )
    made = make_group(Client(api.url, "key", attempts=0), {"shop": Config(second.url, "other")}, options)
    thread = threading.Thread(target=made.run)
    thread.start()
    yield made
    made.stop()
    thread.join(20)
    assert not thread.is_alive()


def page(group: AgentGroup, path: str) -> str:
    host, port = group._metrics or ("", 0)
    with urllib.request.urlopen(f"http://{host}:{port}{path}") as answer:
        return str(answer.read().decode())


def test_files_of_both_projects_arrive_under_one_limit(
    api: AgentApi, second: AgentApi, root: Path, group: AgentGroup
) -> None:
    began = time.monotonic()
    first, other = api.add("a", CONTENT), second.add("b", CONTENT, directory="/shop")

    assert api.wait_for(first)["error_code"] == 0
    assert second.wait_for(other)["error_code"] == 0
    assert ((root / "data/a").read_bytes(), (root / "shop/b").read_bytes()) == (CONTENT, CONTENT)
    assert time.monotonic() - began > 2 * len(CONTENT) / 100_000 * 0.8, "both projects share the limit of the host"
    assert 'tidegate_agent_healthy{profile="shop"} 1' in page(group, "/metrics")
    assert json.loads(page(group, "/healthz"))["agents"].keys() == {"default", "shop"}


def test_each_project_has_its_own_directories_and_users(
    api: AgentApi, second: AgentApi, root: Path, group: AgentGroup
) -> None:
    mine, theirs = api.add("a", CONTENT, directory="/shop"), second.add("b", CONTENT, directory="/data")
    other_user = second.add("c", CONTENT, directory="/shop", target_user="daemon")

    assert api.wait_for(mine)["error_code"] == Code.PATH_REFUSED
    assert second.wait_for(theirs)["error_code"] == Code.PATH_REFUSED
    assert second.wait_for(other_user)["error_code"] == Code.OWNER_REFUSED
    assert [path for path in root.rglob("*") if path.is_file()] == []


def also_process(api: AgentApi, second: AgentApi, root: Path, tmp_path: Path, *words: str) -> subprocess.Popen[bytes]:
    environment = os.environ | {
        "TIDEGATE_API_URL": api.url,
        "TIDEGATE_KEY": "key",
        "TIDEGATE_ALSO_SHOP": f"{second.url} other",
        "XDG_STATE_HOME": str(tmp_path),
        "XDG_CONFIG_HOME": str(tmp_path),
    }
    options = ["--agent-id", AGENT, "--root", str(root), "--also", "shop", "--no-push", "--wait", "1", *words]
    return subprocess.Popen([sys.executable, "-m", "tidegate_client", "agent", *options], env=environment)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ([], Code.PATH_REFUSED),
        (["--allow-dir", "shop=/shop"], Code.PATH_REFUSED),
        (["--allow-user", "shop=*"], Code.PATH_REFUSED),
        (["--allow-dir", "shop=/shop", "--allow-user", "shop=*"], Code.DONE),
        (["--allow-dir", "shop=/shop", "--allow-user", "shop=daemon"], Code.OWNER_REFUSED),
        (["--allow-dir", "shop=/data", "--allow-user", "shop=*"], Code.PATH_REFUSED),
    ],
)
def test_further_project_gets_only_what_is_named_for_it(
    api: AgentApi, second: AgentApi, root: Path, tmp_path: Path, words: list[str], code: Code
) -> None:
    for name in ("data", "shop"):
        (root / name).mkdir()
    process = also_process(api, second, root, tmp_path, "--allow-dir", "/", "--allow-user", ME, *words)
    try:
        result = second.wait_for(second.add("b", CONTENT, directory="/shop"))
        assert api.wait_for(api.add("a", CONTENT))["error_code"] == 0
    finally:
        process.terminate()
        ended(process)

    assert result["error_code"] == code
    if not words:
        assert "--allow-dir shop=DIR and --allow-user shop=USER" in result["error_msg"]


def test_limit_of_a_further_project_is_its_own(api: AgentApi, second: AgentApi, root: Path, tmp_path: Path) -> None:
    permits = ["--allow-dir", "shop=/", "--allow-user", "shop=*", "--limit-rate", "50M", "--limit-rate", "shop=100000"]
    process = also_process(api, second, root, tmp_path, *permits)
    try:
        slow, fast = second.add("b", CONTENT, directory="/shop"), api.add("a", CONTENT)
        assert api.wait_for(fast)["error_code"] == 0
        began = time.monotonic()
        assert second.finals(slow) == []
        assert second.wait_for(slow)["error_code"] == 0
    finally:
        process.terminate()
        ended(process)
    assert time.monotonic() - began > len(CONTENT) / 100_000 * 0.4


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--allow-dir", "shop=/srv"], "--also shop"),
        (["--also", "shop", "--allow-user", "shopp=web"], "--also shopp"),
        (["--also", "shop", "--allow-dir", "shop=srv"], "not an absolute path"),
        (["--limit-rate", "1M", "--limit-rate", "2M"], "given twice"),
        (["--also", "default"], "first login"),
    ],
)
def test_permits_that_belong_to_no_login_are_refused(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, words: list[str], said: str
) -> None:
    monkeypatch.setenv("TIDEGATE_API_URL", "https://one")
    monkeypatch.setenv("TIDEGATE_KEY", "first")

    assert main(["agent", "install", "--print", "--agent-id", AGENT, "--root", str(root), *words]) == 2

    assert said in capsys.readouterr().err


def test_refused_second_key_leaves_the_first_project_served(
    api: AgentApi, second: AgentApi, root: Path, tmp_path: Path
) -> None:
    second.key_status = 401
    process = also_process(api, second, root, tmp_path)
    try:
        assert api.wait_for(api.add("a", CONTENT))["error_code"] == 0
        assert process.poll() is None
    finally:
        process.terminate()
        ended(process)


def test_systemd_is_notified_only_while_all_agents_are_healthy(monkeypatch: pytest.MonkeyPatch) -> None:
    notifications: list[str] = []
    monkeypatch.setattr(group_module, "notify_systemd", notifications.append)
    notifier = GroupNotifier(names={"a", "b"})

    notifier.notify("a", "READY=1")
    notifier.notify("a", "WATCHDOG=1")
    assert notifications == []
    notifier.notify("b", "READY=1")
    notifier.notify("b", "WATCHDOG=1")
    assert notifications == ["READY=1", "WATCHDOG=1"]
    notifier.notify("a", "STOPPING=1")
    notifier.notify("b", "WATCHDOG=1")
    assert notifications == ["READY=1", "WATCHDOG=1", "WATCHDOG=1"], "an agent that has ended does not count"


def test_metrics_of_all_agents_are_one_page() -> None:
    page = '# HELP m What.\n# TYPE m counter\nm{result="ok"} 3\nn 1\n'

    assert merged_metrics({"a": page, "b": page}).splitlines() == [
        "# HELP m What.",
        "# TYPE m counter",
        'm{profile="a",result="ok"} 3',
        'm{profile="b",result="ok"} 3',
        'n{profile="a"} 1',
        'n{profile="b"} 1',
    ]


def test_further_login_ignores_the_environment_of_the_first(tmp_path: Path) -> None:
    environ = {"XDG_CONFIG_HOME": str(tmp_path), "TIDEGATE_API_URL": "http://one", "TIDEGATE_KEY": "first"}
    save(Config("http://two", "second"), environ, "my-shop")

    assert further_login("my-shop", environ) == Config("http://two", "second")
    assert further_login("my-shop", environ | {"TIDEGATE_ALSO_MY_SHOP": "http://three third"}) == Config(
        "http://three", "third"
    )


def test_installed_unit_serves_both_projects_and_shows_no_key(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("data", "shop"):
        (root / name).mkdir()
    words = ["agent", "install", "--print", "--agent-id", AGENT, "--root", str(root), "--also", "shop"]
    permits = ["--allow-dir", "/data", "--allow-dir", "shop=/shop", "--allow-user", "shop=web"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TIDEGATE_API_URL", "https://one")
        patch.setenv("TIDEGATE_KEY", "first")
        patch.setenv("TIDEGATE_ALSO_SHOP", "https://two second")
        assert main(words) == 2, "a further project needs permits of its own"
        assert main([*words, *permits, "--limit-rate", "shop=1M"]) == 0

    unit = capsys.readouterr().out
    assert "--allow-dir /data" in unit
    assert "--also shop --allow-dir shop=/shop --allow-user shop=web --limit-rate shop=1048576" in unit
    assert f"ReadWritePaths={root}/data {root}/shop\n" in unit
    assert "https://two" not in unit, "addresses and keys are in a file that only root can read"
