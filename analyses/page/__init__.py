"""The parts of the page: what a cell shows, its tables, and the template with its style and script."""
