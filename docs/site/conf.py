"""Sphinx's settings for the site; `docs/site/build.py` puts the pages together and calls it.

Strict: a link, a name or a directive that leads nowhere is an error.
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

from docutils import nodes

project = "Headrace"
author = "the authors of Headrace"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = []
root_doc = "index"

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4  # as on GitHub
suppress_warnings = [
    "myst.header",  # pages begin where they like to
    "ref.python",  # two classes of one name: the nearer one is taken
    "misc.highlighting_failure",  # statements of SQL with a caret below them, lines of a log
]

# Single backticks in docstrings name things: they become links where the reference has them, else code.
default_role = "py:obj"
autodoc_member_order = "groupwise"
autodoc_typehints = "signature"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 100
add_module_names = False
# Each page shows the tree of all pages. With every method in it, that is most of what building takes; instead a page of
# the reference begins with the names that it has.
toc_object_entries = False
napoleon_numpy_docstring = False
napoleon_custom_sections = [
    "Contract",
    "Guarantees",
    "Shape",
    "Source",
    *((f"Common arguments of {which}", "Args") for which in ("all", "all three", "both")),
]

html_theme = "furo"
html_title = "Headrace"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_show_copyright = False
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#1d4ed8", "color-brand-content": "#1d4ed8"},
    "dark_css_variables": {"color-brand-primary": "#8ab4ff", "color-brand-content": "#8ab4ff"},
}


def _draw_pictures(app: Any, doctree: Any, docname: str) -> None:
    """Put drawings into the page itself: only there can they follow the reader's choice of light or dark."""
    for image in list(doctree.findall(nodes.image)):
        path = Path(app.srcdir, image["uri"])
        if path.suffix == ".svg":
            svg = path.read_text(encoding="utf-8")
            ids = re.sub(r"\W", "-", path.stem)
            svg = svg.replace('id="tip"', f'id="tip-{ids}"').replace("url(#tip)", f"url(#tip-{ids})")
            image.replace_self(nodes.raw("", f'<div class="drawing">{svg}</div>', format="html"))


_classes_seen: set[type] = set()
"""Classes inside of classes that have been described: those that inherit them do not describe them again."""


def _skip_inherited_classes(
    app: Any, what: str, name: str, value: object, would_be_skipped: bool, options: Any
) -> bool | None:
    """Whether a member is left out; None leaves that to Sphinx."""
    if what != "class" or not inspect.isclass(value) or would_be_skipped:
        return None
    if value in _classes_seen:
        return True
    _classes_seen.add(value)
    return None


def setup(app: Any) -> dict[str, Any]:
    """Called by Sphinx."""
    app.connect("doctree-resolved", _draw_pictures)
    app.connect("autodoc-skip-member", _skip_inherited_classes)
    return {"parallel_read_safe": False, "parallel_write_safe": True}
