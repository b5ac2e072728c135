"""What the README shows works as it stands there."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

from verniermq.testing import broker_process

README = (Path(__file__).parent.parent / "README.md").read_text()


def block(language: str, containing: str) -> str:
    blocks = re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)
    (found,) = [text for text in blocks if containing in text]
    return str(found)


def test_the_client_of_the_first_screen_sends_a_message() -> None:
    program = block("python", "async with Producer")

    with broker_process() as process:
        done = subprocess.run(
            [sys.executable, "-c", program.replace("127.0.0.1:9876", process.namesrv)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip

    assert done.returncode == 0, done.stderr
    assert "SEND_OK" in done.stdout


def test_the_plugin_of_one_screen_is_loaded_as_the_settings_say(tmp_path: Path) -> None:
    (tmp_path / "order_rules.py").write_text(block("python", "# order_rules.py"))
    (tmp_path / "broker.toml").write_text(block("toml", "order_rules.py"))

    command = [sys.executable, "-m", "verniermq.cli", "plugins", "--json", "--config", str(tmp_path / "broker.toml")]
    listed = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    states = {entry["name"]: entry["state"] for entry in listed["entries"]}
    assert states["order_rules"] == "active"
    assert "order_rules" in listed["order"]["before_append"]


def test_the_pages_that_the_readme_links_to_exist() -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", README)

    missing = [link for link in links if not (Path(__file__).parent.parent / link).exists()]
    assert links
    assert missing == []
