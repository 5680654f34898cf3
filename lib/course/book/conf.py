"""Sphinx's settings for the book. lib.course.book copies this file into the folder that Sphinx
reads, and adds the repository's address."""

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

html_theme = "book"
html_theme_path = ["."]
html_static_path = ["static"]
html_copy_source = False
html_scaled_image_link = False
html_show_sourcelink = False
html_use_index = False
html_permalinks_icon = "#"
