"""Takes the pictures of the README from a study's page: python docs/pictures/make.py [studies/digits/report.html]."""

from __future__ import annotations

import sys
from pathlib import Path
from shutil import which

from playwright.sync_api import Page, sync_playwright

OUT = Path(__file__).parent
SIZE = {"width": 1240, "height": 1200}
PICTURES = {"#scatter .chart-and-key": "study-scatter.png", "#landscapes figure": "study-landscapes.png"}
EDGE = 16  # pixels around a picture


def main(report: Path) -> None:
    if not report.is_file():
        sys.exit(f"there is no {report}: run `make demo` first, or name the page of another study")
    browser_path = next(filter(None, map(which, ("chromium", "chromium-browser", "google-chrome"))), None)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        page = browser.new_page(viewport=SIZE, color_scheme="light")
        page.goto(report.resolve().as_uri())
        page.wait_for_selector("html[data-ready=yes]")
        page.add_style_tag(content=".top, .modebar { display: none !important }")
        for selector, name in PICTURES.items():
            take(page, selector, OUT / name)
        browser.close()


def take(page: Page, selector: str, out: Path) -> None:
    """A chart with its caption, without the controls above it."""
    shown = page.locator(selector)
    shown.scroll_into_view_if_needed()
    page.wait_for_timeout(500)
    box = shown.bounding_box()
    if box is None:
        sys.exit(f"the page has no {selector}: the study's `show` has to ask for it")
    left, top, width, height = (box[side] for side in ("x", "y", "width", "height"))
    clip = {"x": left - EDGE, "y": top - EDGE, "width": width + 2 * EDGE, "height": height + 2 * EDGE}
    page.screenshot(path=out, clip=clip)  # type: ignore[arg-type]
    print(out)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "studies/digits/report.html"))
