"""How the page is laid out: its style sheet, and tiles, tables, lists and pictures as HTML."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape
from io import StringIO
from typing import TYPE_CHECKING

from atoll.report.draw import styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LONG = 60  # letters, beyond which a tile takes two columns

CSS = """
:root { color-scheme: light dark; --ink: #1c1c1c; --soft: #5f6368; --line: #dcdcdc; --back: #fafafa; --card: #fff; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e6e6; --soft: #a3a8ae; --line: #3a3d41; --back: #17191b; --card: #202327; }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--back); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 32px 20px 56px; }
h1, p, dt, dd, li, td:first-child, .words td { overflow-wrap: anywhere; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 .4rem; letter-spacing: -.01em; }
h2 { font-size: 1.15rem; margin: 2.4rem 0 .7rem; } h3 { font-size: 1rem; margin: 1.2rem 0 .4rem; }
.result { font-size: 1.15rem; margin: 0 0 .4rem; max-width: 52em; }
.soft, figcaption, caption { color: var(--soft); font-size: .9rem; }
.tiles { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(44%, 185px), 1fr)); gap: 12px;
  margin: 1.6rem 0 0; }
.tiles div { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 10px 14px; }
.tiles .broad { grid-column: span 2; }
dt { color: var(--soft); font-size: .8rem; } dd { margin: 0; }
dd.value { font-size: 1.4rem; font-weight: 600; line-height: 1.3; font-variant-numeric: tabular-nums; }
dd.more { color: var(--soft); font-size: .8rem; line-height: 1.35; }
figure { margin: 0 0 1.6rem; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 340px), 1fr)); gap: 8px 20px;
  background: #fff; border: 1px solid var(--line); border-radius: 8px; padding: 14px; }
.plots svg { display: block; width: 100%; height: auto; max-width: 620px; margin: 0 auto; }
.plots svg:last-child:nth-child(odd) { grid-column: 1 / -1; max-width: 500px; }
.plots svg * { stroke-linejoin: round; stroke-linecap: butt; }
figcaption { margin: .5rem 2px 0; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .92rem; font-variant-numeric: tabular-nums; margin: 0 0 1rem; }
caption { text-align: left; padding: 0 0 .4rem; }
th, td { text-align: right; padding: 4px 14px 4px 0; border-bottom: 1px solid var(--line); vertical-align: top; }
th:first-child, td:first-child, .text { text-align: left; } thead th { font-weight: 600; border-bottom-width: 2px; }
td { white-space: nowrap; }
td:first-child, .words td, td.text { white-space: normal; min-width: 7em; text-align: left; }
pre { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 12px 14px; font-size: .85rem;
  white-space: pre-wrap; overflow-wrap: anywhere; }
summary { cursor: pointer; color: var(--soft); margin: 0 0 .6rem; } ul { padding-left: 1.2em; margin: 0; }
ul.plain { list-style: none; padding: 0; }
.tag { border: 1px solid currentColor; border-radius: 4px; padding: 0 5px; font-size: .8em; white-space: nowrap; }
@media (max-width: 480px) {
  table { font-size: .8rem; } th, td { padding-right: 8px; } td:first-child { min-width: 5.2em; }
}
@media print {
  :root { color-scheme: light; --ink: #000; --soft: #444; --line: #ccc; --back: #fff; --card: #fff; }
  body { font-size: 9pt; } html { font-size: 12px; } main { max-width: none; padding: 0; }
  .plots { grid-template-columns: 1fr 1fr; border: 0; padding: 0; } .tiles { grid-template-columns: repeat(5, 1fr); }
  th, td { padding-top: 2px; padding-bottom: 2px; }
  figure, .tiles div, tr { break-inside: avoid; } h2 { break-after: avoid; }
}
"""


def joined(parts: Iterable[str]) -> str:
    """Put parts below each other."""
    return "\n".join(parts)


def as_tiles(shown: Iterable[tuple[str, str, str]]) -> str:
    """Lay key figures out: (what, value, more)."""
    cells = (
        f"<div{' class=broad' if len(more) > LONG else ''}><dt>{escape(what)}</dt>"
        f"<dd class='value'>{escape(value)}</dd><dd class='more'>{escape(more)}</dd></div>"
        for what, value, more in shown
    )
    return f"<dl class='tiles'>\n{joined(cells)}\n</dl>"


def as_list(said: Iterable[str], kind: str = "") -> str:
    """Lay sentences out below each other."""
    items = joined(f"<li>{escape(line)}</li>" for line in said)
    return f"<ul{f' class={kind!r}' if kind else ''}>\n{items}\n</ul>"


def as_table(
    head: Sequence[str], rows: Iterable[Sequence[str]], about: str = "", kind: str = "", words: Sequence[int] = ()
) -> str:
    """Lay rows of cells out, below what they are about and what their columns are.

    Columns are numbers but for the first and those in `words`; a table of the kind "words" has words alone.
    """
    mark = dict.fromkeys(words, " class='text'")
    top = "".join(f"<th scope='col'{mark.get(k, '')}>{escape(cell)}</th>" for k, cell in enumerate(head))
    body = joined(
        "<tr>" + "".join(f"<td{mark.get(k, '')}>{escape(cell)}</td>" for k, cell in enumerate(row)) + "</tr>"
        for row in rows
    )
    said = f"<caption>{escape(about)}</caption>" if about else ""
    return (
        f"<div class='wide'><table class='{kind}'>{said}{f'<thead><tr>{top}</tr></thead>' if head else ''}\n"
        f"<tbody>\n{body}\n</tbody></table></div>"
    )


def svg(figure: Figure, name: str, title: str) -> str:
    """Return a figure as SVG to stand inside a page: no address outside it, no id that another figure has."""
    out = StringIO()
    with styled():
        figure.savefig(out, format="svg", metadata={"Date": None})
    text = re.sub(r"<(metadata|style)\b.*?</\1>", "", out.getvalue()[out.getvalue().index("<svg") :], flags=re.DOTALL)
    text = text.replace("xlink:href=", "href=").replace("<defs>\n  \n </defs>\n", "")
    view = re.search(r'viewBox="[^"]*"', text)
    text = re.sub(r"^<svg\b[^>]*>", f'<svg {view[0] if view else ""} role="img" aria-label="{escape(title)}">', text)
    used = {name for pair in re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', text) for name in pair}
    ids = {old: f"{name}-{k}" for k, old in enumerate(i for i in re.findall(r' id="([^"]+)"', text) if i in used)}
    text = re.sub(r' id="([^"]+)"', lambda m: f' id="{ids[m[1]]}"' if m[1] in ids else "", text)
    text = re.sub(r'href="#([^"]+)"', lambda m: f'href="#{ids[m[1]]}"', text)
    text = re.sub(r"url\(#([^)]+)\)", lambda m: f"url(#{ids[m[1]]})", text)
    return re.sub(r"\n\s*", "\n", re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)).strip()
