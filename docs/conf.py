"""Settings of the documentation site. `make docs` builds it; every warning is an error."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from bench import __version__  # noqa: E402
from docs.reference_pages import write_reference_pages  # noqa: E402

project = "dp-distill-bench"
release = version = __version__
copyright = "the authors of dp-distill-bench"
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build", "_templates", "tables"]
html_sidebars = {"index": [], "tutorial": []}
html_title = project
smartquotes = False  # two hyphens begin an option
html_theme = "pydata_sphinx_theme"
html_theme_options = {
    "show_toc_level": 1,
    "navigation_depth": 2,
    "show_prev_next": False,
    "secondary_sidebar_items": ["page-toc"],
    "navbar_end": ["boards-link", "theme-switcher", "navbar-icon-links"],  # the report, which `make docs` puts there
}
html_show_sourcelink = False
html_copy_source = False
html_static_path = ["_static"]
templates_path = ["_templates"]
html_css_files = ["site.css"]

nb_execution_mode = "cache"  # notebooks are stored without outputs; a build runs those that changed
nb_execution_in_temp = True
nb_execution_raise_on_error = True
nb_execution_timeout = 900
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 4
myst_links_external_new_tab = False

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
default_role = "literal"
autodoc_class_signature = "separated"
napoleon_numpy_docstring = False
napoleon_custom_sections = [("Class variables", "params_style"), ("Optional methods", "params_style")]


OUTSIDE = re.compile(r"\[([^\]]*)\]\((?:\.\./)+(?:[^)]*\.md[^)]*|[^).]*)\)")
"""A link to a page or folder of the repository that is not part of the site."""

WIDTH = re.compile(r'<svg[^>]* width="([0-9.]+pt)"')
"""The width of a vector drawing."""


def unlink_outside_pages(app: Sphinx, page: str, source: list[str]) -> None:
    """Leave the words of links to pages that the site does not have; links to code become downloads."""
    if Path(app.env.doc2path(page)).suffix != ".ipynb":
        source[0] = OUTSIDE.sub(r"\1", source[0])


def link_images(app: Sphinx, doctree: nodes.document) -> None:
    """Let every figure link to its file, as diagrams and figures of two panels are too small to read on a phone.

    Sphinx links images that have a scale or a width; notebooks' images have no text that could name a link.
    """
    for image in doctree.findall(nodes.image):
        path = Path(app.srcdir, image["uri"])
        if not image.get("alt"):
            continue
        if path.suffix == ".png":
            image["scale"] = 100
        elif path.suffix == ".svg" and (found := WIDTH.search(path.read_text(encoding="utf-8"))):
            image["width"] = found[1]


def setup(app: Sphinx) -> None:
    """Connect the handlers; pages from the registry and the command are written before any page is read."""
    app.connect("builder-inited", lambda _: write_reference_pages(ROOT / "docs" / "generated"))
    app.connect("source-read", unlink_outside_pages)
    app.connect("doctree-read", link_images)
