"""Charts of the report as inline SVG: points that lead to their runs, with a legend; colours are the page's."""
