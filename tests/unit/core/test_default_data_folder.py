"""The default data folder of a broker follows the conventions of the operating system."""

from __future__ import annotations

from pathlib import Path

import pytest

from warren.core.default_data_folder import default_data_folder

HOME = Path("/people/me")


@pytest.mark.parametrize(
    ("platform", "environment", "folder"),
    [
        ("linux", {}, "/people/me/.local/share/warren/broker"),
        ("linux", {"XDG_DATA_HOME": "/data"}, "/data/warren/broker"),
        # The specification: a path that is not absolute is ignored.
        ("linux", {"XDG_DATA_HOME": "data"}, "/people/me/.local/share/warren/broker"),
        ("linux", {"XDG_DATA_HOME": "", "LOCALAPPDATA": "/other"}, "/people/me/.local/share/warren/broker"),
        ("darwin", {}, "/people/me/Library/Application Support/warren/broker"),
        ("win32", {}, "/people/me/AppData/Local/warren/broker"),
        ("win32", {"LOCALAPPDATA": "/people/local"}, "/people/local/warren/broker"),
    ],
)
def test_the_folder_of_an_operating_system(platform: str, environment: dict[str, str], folder: str) -> None:
    assert default_data_folder(environment, platform, HOME) == Path(folder)
