"""The page in a real browser: it fits the window, wide and narrow, and shows something."""

import re
import shutil

import numpy as np
import pytest

import spawn
from atoll.report.page import write

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no chromium to render the page with")

# A window of a browser is never narrower than 500 pixels: a frame is.
FRAME = """<!DOCTYPE html>
<body style="margin:0"><iframe id="f" style="border:0;width:{width}px;height:12000px"></iframe>
<script>
const f = document.getElementById("f");
f.onload = () => {{
  const d = f.contentDocument, e = d.documentElement;
  const all = [...d.querySelectorAll("main *")].filter(x => !x.closest("svg *, .wide *"));
  const out = all.filter(x => x.getBoundingClientRect().right > {width} + 1);
  document.title = ["said", e.clientWidth, e.scrollWidth, out.length, d.querySelectorAll("svg").length].join(" ");
}};
f.srcdoc = {page};
</script>"""


def browse(*options, profile):
    command = [
        BROWSER,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--hide-scrollbars",
        f"--user-data-dir={profile}",
    ]
    return spawn.run([*command, *options], capture_output=True, text=True, timeout=120, check=True).stdout


def framed(path, width):
    import json

    held = json.dumps(path.read_text(encoding="utf-8")).replace("</", "<\\/")
    copy = path.with_name(f"{path.stem}-{width}.html")
    copy.write_text(FRAME.format(width=width, page=held), encoding="utf-8")
    return copy


@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_fits_the_window(width, tell, tmp_path):
    about, facts = tell(parties=4, names=("x" * 200, "<b>", "Zürich", "d"), private=("party", "example"))
    about["seen"]["server"] = "simulated_" * 40
    about["job"]["name"] = "a_very_long_name_without_any_space_" * 6
    path = write(tmp_path / "r.html", about, facts)
    seen = browse("--virtual-time-budget=5000", "--dump-dom", framed(path, width).as_uri(), profile=tmp_path / "p")
    inner, scroll, out, plots = map(int, re.search(r"<title>said (\d+) (\d+) (\d+) (\d+)</title>", seen).groups())
    assert inner == scroll == width
    assert out == 0
    assert plots == 15


def test_the_page_shows_something_in_light_and_dark(run, tmp_path):
    from matplotlib.image import imread

    path = write(tmp_path / "r.html", *run)
    seen = []
    for name, option in (
        ("light", "--blink-settings=preferredColorScheme=1"),
        ("dark", "--blink-settings=preferredColorScheme=0"),
    ):
        shot = tmp_path / f"{name}.png"
        browse(option, "--window-size=1280,1600", f"--screenshot={shot}", path.as_uri(), profile=tmp_path / "p")
        image = imread(shot)[..., :3]
        assert image.shape[1] == 1280
        assert image.std() > 0.05
        assert len(np.unique(image.reshape(-1, 3)[::7], axis=0)) > 30
        seen.append(float(image[5, 5].mean()))
    assert seen[0] > 0.9
    assert seen[1] < 0.2
