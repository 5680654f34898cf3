"""Sphinx's settings for the book. It is built from a folder that lib.course.book
makes; see there."""

project = "Distributed training, by building it"
html_title = project
extensions = ["myst_nb", "lib.course.book.pages"]
nitpicky = True

highlight_language = "none"
nb_execution_mode = "off"
nb_ipywidgets_js = {}
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 2
html_math_renderer = "mathml"

html_theme = "sphinx_book_theme"
html_static_path = ["static"]
html_favicon = "static/icon.svg"  # without one, a browser asks the server's root for it
html_css_files = ["book.css"]
html_js_files = [("book.js", {"defer": "defer"})]
# it would ask for the pages, which a page opened as a file may not
html_show_search_summary = False
html_copy_source = False
html_scaled_image_link = False
html_show_sourcelink = False
html_show_sphinx = False
html_use_index = False
html_context = {"default_mode": "auto"}
html_theme_options = {
    "use_download_button": False,
    "use_fullscreen_button": False,
    "navbar_persistent": [],
    "footer_content_items": "",
    "show_toc_level": 1,
    "toc_title": "On this page",
}
