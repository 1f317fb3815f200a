"""The pictures of the documentation: small, used, and asking nothing of another server."""

from __future__ import annotations

import re

from tools.screenshots import IMAGES, LARGEST, drawn


def test_pictures_are_small_and_used() -> None:
    pages = "".join(page.read_text() for page in IMAGES.parent.rglob("*.md"))
    pictures = list(IMAGES.iterdir())
    assert pictures
    for picture in pictures:
        assert picture.stat().st_size <= LARGEST, picture
        assert re.search(rf"!\[.{{20,}}\]\(\.\./images/{re.escape(picture.name)}\)", pages), (
            f"{picture.name} is not used"
        )


def test_a_terminals_picture_has_its_text_and_loads_nothing() -> None:
    svg = drawn("kgpu top --once", "\x1b[1;31mLOST:\x1b[0m reboot")
    assert "LOST:" in svg
    assert "font-weight: bold" in svg
    assert "@font-face" not in svg
    assert "url(http" not in svg
