"""The pages that people see of a hub in a browser; the same pages are served and exported."""
