"""Makes the pictures of the docs: python docs/pictures/make.py [--folder FOLDER] [NAME ...], or `make pictures`.

Pages are read from the folder, by default the working one; those that are missing are made by their commands first.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from shutil import which
from typing import Any

from PIL import Image

OUT = Path(__file__).parent
SIZE = {"width": 1240, "height": 1200}
EDGE = 16  # pixels around a picture
COLOURS = 256
SMALL = "--data digits --model mlp --model-options width=32,depth=2"


@dataclass(frozen=True)
class Picture:
    """A part of a page: a selector, and the commands that write the page."""

    name: str
    page: str
    selector: str
    commands: tuple[str, ...]
    width: int = 1240
    part: tuple[float, float] = (0.0, 1.0)  # of the height, from the top


def _of_records(name: str, recipe: str, budget: str, part: tuple[float, float] = (0.0, 1.0)) -> Picture:
    """The figure of a recipe, from its committed records."""
    page = f"studies/{recipe}/committed/{budget}/reproduce.html"
    return Picture(name, page, "#figure", (f"steppe reproduce {recipe} --budget {budget} --report",), 900, part)


STUDY = ("steppe study run",)
PICTURES = (
    Picture("study-scatter", "studies/digits/report.html", "#scatter .chart-and-key", STUDY),
    Picture("study-landscapes", "studies/digits/report.html", "#landscapes figure", STUDY),
    Picture("study-spectra", "studies/digits/report.html", "#spectra figure", STUDY),
    Picture("study-verdicts", "studies/digits/report.html", "#forest", STUDY),
    Picture(
        "landscape-between",
        "between.html",
        "main",
        (
            f"steppe train {SMALL} --method sam --rho 0.1 --epochs 20 --out runs/sam",
            f"steppe train {SMALL} --method none --epochs 20 --out runs/none",
            "steppe landscape runs/sam runs/none --points 41 --out between.html",
        ),
        width=900,
    ),
    Picture(
        "theory-figure-2",
        "theory/sharpbalance-figure-2.html",
        "main",
        ("steppe theory sharpbalance-figure-2 --out theory",),
    ),
    Picture(
        "ensemble-tradeoff",
        "runs/tradeoff/tradeoff.html",
        "main",
        (
            "steppe ensemble --strategy deep+sam,sharpbalance --model-options width=32,depth=2"
            " --radii 0.01,0.02,0.05,0.1 --epochs 15 --batch-size 50"
            " --sharpness 'adaptive_worst_l2@0.5[count=100,m=5]' --out runs/tradeoff",
        ),
    ),
    _of_records("paper-universal", "universal/fig1", "paper", (0.5, 0.75)),
    _of_records("paper-agnostic", "agnostic/table4", "short"),
    _of_records("paper-sharpbalance", "sharpbalance/small", "short", (0.0, 0.53)),
    _of_records("paper-sa-sam", "sa-sam/fig2", "short", (0.0, 0.47)),
    Picture(
        "paper-modern-look",
        "theory/sparse-regression.html",
        "#figure",
        ("steppe theory sparse-regression --out theory",),
    ),
)


def main(folder: Path, names: list[str]) -> None:
    from playwright.sync_api import sync_playwright  # only to take them: the tests read the list above

    unknown = set(names) - {p.name for p in PICTURES}
    if unknown:
        sys.exit(f"there is no picture {', '.join(sorted(unknown))}: {', '.join(p.name for p in PICTURES)}")
    chosen = [p for p in PICTURES if not names or p.name in names]
    for picture in chosen:
        if not (folder / picture.page).is_file():
            for command in picture.commands:
                print(command, flush=True)
                words = [sys.executable, "-m", *shlex.split(command)]
                subprocess.run(words, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    path = next(filter(None, map(which, ("chromium", "chromium-browser", "google-chrome"))), None)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        for picture in chosen:
            size = {**SIZE, "width": picture.width}
            page = browser.new_page(viewport=size, color_scheme="light")  # type: ignore[arg-type]
            page.goto((folder / picture.page).resolve().as_uri())
            take(page, picture)
            page.close()
        browser.close()


def take(page: Any, picture: Picture) -> None:
    """A chart with its caption, without the controls above it."""
    if picture.page.endswith("report.html"):
        page.wait_for_selector("html[data-ready=yes]")
        page.evaluate("document.querySelectorAll('.fold').forEach(one => { one.open = true; })")
    else:
        page.wait_for_selector(".js-plotly-plot .main-svg")
        page.set_viewport_size({"width": picture.width, "height": 4000})  # all of it, for parts below the first screen
    page.add_style_tag(content=".top, .modebar, .screen-only { display: none !important }")
    shown = page.locator(picture.selector)
    shown.scroll_into_view_if_needed()
    page.wait_for_timeout(500)
    box = shown.bounding_box()
    if box is None:
        sys.exit(f"{picture.page} has no {picture.selector}: the study's `show` has to ask for it")
    left, top, width, height = (box[side] for side in ("x", "y", "width", "height"))
    start, end = (height * share for share in picture.part)
    top, height = top + start, end - start
    clip = {"x": max(left - EDGE, 0), "y": max(top - EDGE, 0), "width": width + 2 * EDGE, "height": height + 2 * EDGE}
    clip["width"] = min(clip["width"], picture.width - clip["x"])
    with Image.open(BytesIO(page.screenshot(clip=clip))) as shot:
        few_colours = shot.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)  # a third of the size
    few_colours.save(OUT / f"{picture.name}.png", optimize=True)
    print(OUT / f"{picture.name}.png")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="pictures; all of them by default")
    parser.add_argument("--folder", type=Path, default=Path(), help="where the pages are, or are made")
    given = parser.parse_args()
    main(given.folder, given.names)
