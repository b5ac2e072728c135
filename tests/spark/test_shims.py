"""Where scripts are kept that Spark runs: nobody else may be able to change them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from verniermq.contrib.spark.shims import write_script

TEXT = "#!/bin/sh\necho it runs\n"


def unlock(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o777)


def unlock_what_is_above(folder: Path) -> None:
    folder.mkdir()
    folder.parent.chmod(0o770)


def make_file(folder: Path) -> None:
    folder.write_text("")


def link_to_unlocked(folder: Path) -> None:
    unlock(folder.with_name("unlocked"))
    folder.symlink_to(folder.with_name("unlocked"))


def test_a_script_is_kept_and_written_once(tmp_path: Path) -> None:
    script = write_script("greeting", "bin/greet", TEXT, {"XDG_CACHE_HOME": str(tmp_path)})
    written = script.stat()

    again = write_script("greeting", "bin/greet", TEXT, {"XDG_CACHE_HOME": str(tmp_path)})

    assert script.is_relative_to(tmp_path / "verniermq")
    assert (again, again.stat().st_ino) == (script, written.st_ino)
    assert subprocess.run([script], capture_output=True, text=True, check=True).stdout == "it runs\n"


def test_a_script_that_was_changed_is_written_anew(tmp_path: Path) -> None:
    script = write_script("greeting", "greet", TEXT, {}, tmp_path)
    script.write_text("#!/bin/sh\nexit 1\n")

    assert write_script("greeting", "greet", TEXT, {}, tmp_path).read_text() == TEXT


@pytest.mark.parametrize("prepare", [unlock, unlock_what_is_above, make_file, link_to_unlocked])
def test_what_others_could_change_is_not_run(tmp_path: Path, prepare: Callable[[Path], None]) -> None:
    shims = tmp_path / "mine" / "shims"
    shims.parent.mkdir()
    prepare(shims)

    script = write_script("greeting", "greet", TEXT, {}, shims)

    assert not script.is_relative_to(tmp_path)
    assert (script.stat().st_mode | script.parents[1].stat().st_mode) & 0o022 == 0
    assert subprocess.run([script], capture_output=True, text=True, check=True).stdout == "it runs\n"


def test_a_script_that_others_may_write_is_replaced(tmp_path: Path) -> None:
    before = write_script("greeting", "greet", TEXT, {}, tmp_path)
    before.chmod(0o777)
    number = before.stat().st_ino

    after = write_script("greeting", "greet", TEXT, {}, tmp_path)

    assert after == before
    assert after.stat().st_ino != number
    assert after.stat().st_mode & 0o022 == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to somebody else")
def test_a_script_in_a_folder_of_another_user_is_not_run(tmp_path: Path) -> None:
    folder = write_script("greeting", "greet", TEXT, {}, tmp_path).parent
    os.chown(folder, 12345, -1)

    assert not write_script("greeting", "greet", TEXT, {}, tmp_path).is_relative_to(tmp_path)


def test_a_user_without_a_home_gets_a_folder_for_the_process_that_goes_with_it() -> None:
    program = (
        "from pathlib import Path\n"
        "def home(): raise RuntimeError('no home')\n"
        "Path.home = home\n"
        "from verniermq.contrib.spark.shims import write_script\n"
        f"print(write_script('greeting', 'greet', {TEXT!r}, {{}}))\n"
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    script = Path(done.stdout.strip())
    assert script.parts[-1] == "greet"
    assert not script.parents[1].exists()


def test_several_may_write_the_same_script_at_a_time(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        scripts = list(pool.map(lambda _: write_script("greeting", "greet", TEXT, {}, tmp_path), range(64)))

    assert len(set(scripts)) == 1
    assert [path.name for path in scripts[0].parent.iterdir()] == ["greet"]
