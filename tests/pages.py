"""Studies that were never run, for pages that have to show them; and a browser to look at the pages with."""

from __future__ import annotations

import math
import os
import random
import re
import shutil
import time
import unicodedata
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest

from steppe.studies.report import content, html
from steppe.studies.store import Store
from steppe.training.config import Config

METHODS = ["none", "sam", "asam", "gsam", "trace-sam", "sa-sam"]
MEASURES = ["adaptive_worst_linf@0.002", "worst_l2@0.25", "lambda_max", "trace", "avg_l2@0.05", "fisher_trace"]
KINDS = ["lower bound", "lower bound", "lower bound", "unbiased", "unbiased", "exact"]
HOSTILE = [
    "<script>window.hacked = 1</script>",
    '</script><img src=x onerror="window.hacked=1">',
    "\"quoted\" & 'single' <b>bold</b> &lt;entity&gt;",
    '=HYPERLINK("http://example.invalid")',
    "мандариновый 模型 نموذج 🦔 " + "e\u0301" * 120,
    "line\u2028separator\u2029 and \u202eturned",
    "%{x} {{ 7 * 7 }} ${window.hacked = 1} $\\alpha$",
]


@dataclass(frozen=True)
class Cell:
    key: str
    name: str
    config: dict[str, Any]
    groups: dict[str, Any] = field(default_factory=dict)


def cells(n: int, *, hostile: bool = False) -> list[Cell]:
    """n runs by six methods, learning rates, weight decays, augmentations and seeds."""
    made = []
    for i in range(n):
        method = METHODS[i % 6]
        lr = [0.05, 0.1, 0.2, 0.4][i // 6 % 4]
        decay = [0.0, 5e-4, 2e-3][i // 24 % 3]
        augment = [[], ["flip"]][(i // 6 + i) % 2]
        rho = {"none": None, "sa-sam": None, "asam": [0.5, 0.25][i // 72 % 2]}.get(method, 0.1)
        varied = {"method": method, "rho": rho, "lr": lr, "weight_decay": decay, "augment": augment, "seed": i // 72}
        config = asdict(Config(**varied, momentum=0.9))  # SA-SAM's default is another: not a setting of this study
        name = f"{method} lr={lr} decay={decay} {'+'.join(augment) or 'plain'} seed={i // 72}"
        if hostile and i < len(HOSTILE):
            name = HOSTILE[i]
        if hostile and i == 1:
            config["model"] = "<i>model</i>"
        made.append(Cell(f"{i:08x}", name, config, {"augment": augment}))
    return made


def estimate(value: float, stderr: float, kind: str, n: int = 8) -> dict[str, Any]:
    cost = {"losses": 0.0, "gradients": 20.0, "products": 0.0}
    return {"value": value, "stderr": stderr, "n": n, "kind": kind, "cost": cost, "seconds": 0.31, "note": ""}


def study(path: Path, n: int = 30, *, seed: int = 0, hostile: bool = False, left: int = 0, extras: bool = True) -> Path:
    """A store of n runs with numbers that look like a study's; the last `left` runs are not there yet."""
    draw = random.Random(seed)
    planned = cells(n, hostile=hostile)
    name = HOSTILE[1] if hostile else "Digits: six methods, four learning rates"
    with Store.open(path) as store:
        store.add(planned)
        about = {"name": "digits", "title": name, "measures": MEASURES, "targets": ["test_error", "gap"]}
        texts = (
            HOSTILE[:2]
            if hostile
            else ["Do flatter runs err less?", "Two thousand rows.\n\nSix methods,\none network."]
        )
        about |= {"groups": ["augment"], "question": texts[0], "notes": texts[1]}
        store.note(
            "study",
            about
            | {
                "admission": ["train_error <= 0.02"],
                "cells": [[c.key, c.name, [c.groups["augment"]]] for c in planned],
            },
        )
        for i, cell in enumerate(planned[: n - left]):
            if i == 11:
                store.fail(cell.key, "ValueError: the loss is not finite after step 180: lower lr, which is 0.4")
            else:
                finish(store, cell, draw)
        if extras:
            attach(store, planned, draw)
    return path


def finish(store: Store, cell: Cell, draw: random.Random) -> None:
    """One run's outcome: sharpness falls with the learning rate, and tells little of the error."""
    config = cell.config
    flat = {"none": 1.0, "sam": 0.62, "asam": 0.55, "gsam": 0.6, "trace-sam": 0.7, "sa-sam": 0.8}[config["method"]]
    flip = bool(config["augment"])
    sharp = flat * (config["lr"] / 0.1) ** -0.35 * math.exp(draw.gauss(0, 0.12)) * (0.8 if flip else 1)
    error = 0.034 + 0.010 * flat - 0.007 * flip + draw.gauss(0, 0.003)
    train = abs(draw.gauss(0, 0.004)) + (0.03 if cell.key.endswith("5") and draw.random() < 0.5 else 0)
    scales = [0.02, 0.11, 18.0, 240.0, 0.004, 3.1]
    measures = {
        name: estimate(scale * sharp ** (1 + 0.2 * k) * math.exp(draw.gauss(0, 0.1)), 0.05 * scale * sharp, kind)
        for k, (name, kind, scale) in enumerate(zip(MEASURES, KINDS, scales, strict=True))
    }
    if "exact" in KINDS:
        measures["fisher_trace"]["stderr"] = 0.0
    epochs = [
        {
            "epoch": e,
            "lr": config["lr"] * 0.5 * (1 + math.cos(math.pi * e / 30)),
            "train_loss": 2.3 * math.exp(-e / 5) + train + abs(draw.gauss(0, 0.01)),
            "test_accuracy": 1 - error - 0.8 * math.exp(-e / 4),
            "seconds": 0.2,
        }
        for e in range(1, 31)
    ]
    store.record(
        cell.key,
        targets={"test_error": error, "gap": error - train, "train_error": train},
        target_errors={"test_error": math.sqrt(error * (1 - error) / 2000)},
        measures=measures,
        meta={"seconds": 4.2, "passes": 60 if config["method"] == "none" else 120, "training_seconds": 3.5},
        curves=epochs,
        versions={"steppe": "0.1", "torch": "2.13.0", "python": "3.11.2"},
    )


def attach(store: Store, planned: list[Cell], draw: random.Random) -> None:
    """Spectra, landscapes and ensembles, as a study may keep them."""
    for k, cell in enumerate(planned[:4]):
        x = [-2 + 0.25 * i for i in range(120)]
        top = 12 + 4 * k
        bumps = [(0.0, 0.4, 1.0), (top, 0.3, 1e-4), (top / 2, 0.5, 1e-3)]
        density = [sum(w * math.exp(-(((v - c) / s) ** 2)) for c, s, w in bumps) for v in x]
        store.note(f"spectrum/{cell.key}", {"x": x, "density": density, "error": [0.0] * len(x), "title": ""})
        axis = [-1 + 0.1 * i for i in range(21)]
        losses = [[0.02 + (1 + k) * a * a + 0.6 * b * b + 0.4 * a * b for b in axis] for a in axis]
        plane = {"x": axis, "y": axis, "losses": losses, "names": ["random direction 1", "random direction 2"]}
        store.note(f"landscape/{cell.key}", plane | {"title": "", "note": ""})
    for kind, flat in (("plain", 1.0), ("SAM", 0.6), ("SharpBalance", 0.7)):
        for m in range(3):
            values = {"sharpness": flat + draw.gauss(0, 0.03), "diversity": 0.2 * flat + draw.gauss(0, 0.01)}
            store.note(f"ensemble/{kind} {m}", {"name": f"{kind} {m}", "kind": kind, "members": 3, "values": values})


@contextmanager
def browser() -> Iterator[Any]:
    """Headless Chromium with nothing remembered and nothing of its own to fetch; a test without one is skipped.

    With STEPPE_BROWSER=required a missing browser is a failure instead.
    """
    missing = _missing()
    if missing:
        if os.environ.get("STEPPE_BROWSER") == "required":
            pytest.fail(f"STEPPE_BROWSER=required, and {missing}")
        pytest.skip(f"the report was not looked at in a browser: {missing}")
    from playwright.sync_api import sync_playwright

    quiet = ["--no-sandbox", "--disable-background-networking", "--disable-component-update", "--no-first-run"]
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=executable(), args=quiet)
        try:
            yield launched
        finally:
            launched.close()


def wait_until(page: Any, expression: str, seconds: float = 20.0) -> None:
    """Wait for an expression; Playwright's wait_for_function calls eval in the page, which our pages forbid."""
    end = time.monotonic() + seconds
    while not page.evaluate(expression):
        assert time.monotonic() < end, expression
        page.wait_for_timeout(50)


def chart(page: Any, name: str, expression: str) -> Any:
    """Scroll to a chart, because those far away are not drawn; then evaluate an expression of its `place`."""
    place = f"document.getElementById('{name}-chart')"
    page.evaluate(f"{place}.scrollIntoView({{ block: 'center', behavior: 'instant' }})")
    wait_until(page, f"Boolean({place}.data) && !{place}.dataset.stale")
    return page.evaluate(f"(place => {expression})({place})")


def close_run(page: Any) -> None:
    """Close the dialog of a run by Escape; its close event, which moves the focus back, comes after the key."""
    page.keyboard.press("Escape")
    wait_until(page, "!document.querySelector('dialog[open]') && !/[#&]run=/.test(location.hash)")


def written(folder: Path, store: Path) -> Path:
    """The report of a store, with fewer permutations than usual."""
    with Store.reading(store) as opened:
        text = html(content(opened, full=False))
    (folder / "report.html").write_text(text, encoding="utf-8")
    return folder / "report.html"


class Window:
    """Pages of one process that all open one address: it compiles plotly once, which takes longer than all the rest.

    A script that is in a page is compiled again for every process, and again for every address.
    """

    def __init__(self, launched: Any, folder: Path) -> None:
        self.file = folder / "report.html"
        self.file.write_text("<!doctype html><title>the first page</title>", encoding="utf-8")
        self.context = launched.new_context(offline=True, reduced_motion="reduce")
        self.first = self.context.new_page()
        self.first.goto(self.file.as_uri())

    def open(self) -> Any:
        """Open a page in the process of the first, as a window: of several tabs in one window only one is drawn."""
        with self.context.expect_page() as opened:
            self.first.evaluate("() => { window.open('about:blank', '', 'popup'); }")
        return opened.value

    def address(self, file: Path) -> str:
        """Put a page in place of the one before, and return the address that all have."""
        shutil.copyfile(file, self.file)
        return self.file.as_uri()

    def close(self) -> None:
        self.context.close()


class Watched:
    """A page that records its requests, its console and its errors."""

    def __init__(self, window: Window) -> None:
        self.how: dict[str, Any] = {}
        self.window = window
        self.page = window.open()
        self.page.set_default_timeout(20_000)
        self.requests: list[str] = []
        self.messages: list[str] = []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("console", lambda message: self.messages.append(message.text))
        self.page.on("pageerror", lambda error: self.messages.append(str(error.stack)))

    def visit(self, file: Path, link: str = "", *, folds: bool = True, **how: Any) -> Any:
        """Load a file and open its folds; of a link, the part of the address behind it, open only what it opens."""
        self.how = {"viewport": {"width": 1280, "height": 900}, "color_scheme": "light"} | how
        if self.requests:
            self.page.evaluate("localStorage.clear()")
            self.page.goto("about:blank")  # or an address that differs in its fragment alone would not be loaded
        self.page.emulate_media(media="screen", color_scheme=self.how["color_scheme"])
        self.page.set_viewport_size(self.how["viewport"])
        self.page.bring_to_front()
        self.requests.clear()
        self.messages.clear()
        self.page.goto(self.window.address(file) + link)
        self.page.wait_for_selector("html[data-ready=yes]")
        if folds and not link:
            self.unfold()
        self.values = self.page.evaluate(VALUES)
        return self.page

    def unfold(self) -> None:
        """Open everything that the page folds, as a reader may who looks at all of it."""
        self.page.evaluate("document.querySelectorAll('.fold').forEach(one => { one.open = true; })")
        wait_until(self.page, "!document.querySelector('.fold[data-stale]')")

    def reset(self) -> None:
        """Restore the page as it was opened."""
        self.page.emulate_media(media="screen", color_scheme=self.how["color_scheme"])
        if self.page.viewport_size != self.how["viewport"]:
            self.page.set_viewport_size(self.how["viewport"])
        self.page.evaluate(RESET, self.values)
        assert self.page.evaluate(VALUES) == self.values

    def check_quiet(self) -> None:
        """Nothing is requested after the page itself, and the console is empty."""
        others = [url for url in self.requests[1:] if not url.startswith(("data:", "blob:"))]
        assert not others, others
        assert not self.messages, self.messages


# the values of all menus and boxes, by id
VALUES = """() => Object.fromEntries([...document.querySelectorAll('select[id], input[id]')].map(
  one => [one.id, one.type === 'checkbox' ? one.checked : one.value]))"""
# no dialog, filter, sorting, open list, chosen theme or remembered place in the table; then these values
RESET = """values => {
  document.querySelectorAll('dialog[open]').forEach(one => one.close());
  document.querySelectorAll('details[open]:not(.fold)').forEach(one => { one.open = false; });
  const system = document.querySelector('[data-theme-name=auto]');
  if (system.ariaChecked !== 'true') system.click();
  document.getElementById('clear').click();
  const sorted = () => document.querySelector('#runs-table :is([aria-sort=ascending], [aria-sort=descending]) button');
  while (sorted()) sorted().click();
  for (const first of ['thead button', 'tbody tr']) {
    document.querySelector(`#runs-table ${first}`).focus();
    document.activeElement.dispatchEvent(new KeyboardEvent('keydown', { key: 'Home', bubbles: true }));
  }
  for (const [id, value] of Object.entries(values)) {
    const one = document.getElementById(id), field = one.type === 'checkbox' ? 'checked' : 'value';
    if (one[field] !== value) { one[field] = value; one.dispatchEvent(new Event('change')); }
  }
  document.activeElement.blur();
  scrollTo({ top: 0, behavior: 'instant' });
}"""


def pdf_text(data: bytes) -> str:
    """The text of a PDF that Chromium wrote, without blanks: its glyphs, by the character maps of its fonts."""
    objects = {int(n): body for n, body in re.findall(rb"(\d+) 0 obj\n(.*?)\nendobj", data, re.DOTALL)}

    def stream(body: bytes) -> bytes:
        packed = re.search(rb"stream\r?\n(.*)\r?\nendstream", body, re.DOTALL)
        return (zlib.decompressobj().decompress(packed[1]) if b"FlateDecode" in body else packed[1]) if packed else b""

    maps: dict[int, dict[int, str]] = {}
    for n, body in objects.items():
        if reference := re.search(rb"/ToUnicode (\d+) 0 R", body):
            chars = maps[n] = {}
            text = stream(objects[int(reference[1])]).decode()
            for part in re.findall(r"beginbfchar(.*?)endbfchar", text, re.DOTALL):
                for code, to in re.findall(r"<(\w+)> <(\w+)>", part):
                    chars[int(code, 16)] = bytes.fromhex(to).decode("utf-16-be")
            for part in re.findall(r"beginbfrange(.*?)endbfrange", text, re.DOTALL):
                for low, high, to in re.findall(r"<(\w+)> <(\w+)> <(\w+)>", part):
                    for code in range(int(low, 16), int(high, 16) + 1):
                        chars[code] = chr(int(to, 16) + code - int(low, 16))
    shown = []
    for body in objects.values():
        font: dict[int, str] = {}
        for name, codes in re.findall(rb"/F(\d+) [\d.]+ Tf|<([0-9A-Fa-f]+)>", stream(body)):
            font = maps.get(int(name), {}) if name else font
            shown += [font.get(int(codes[k : k + 4], 16), "") for k in range(0, len(codes), 4)]
    return "".join(unicodedata.normalize("NFKC", "".join(shown)).split())  # ligatures as letters


def executable() -> str | None:
    """The browser that is there: the one named by STEPPE_BROWSER_PATH, or Chromium or Chrome."""
    named = os.environ.get("STEPPE_BROWSER_PATH")
    return named or next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def _missing() -> str:
    try:
        import playwright  # noqa: F401
    except ImportError:
        return "playwright is not installed (pip install playwright)"
    return "" if executable() else "there is no chromium (apt install chromium)"
