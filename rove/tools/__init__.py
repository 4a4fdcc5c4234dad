"""Functions as tools: schemas and checks of arguments."""

from rove.tools.tool import Tool, make_tool

__all__ = ["Tool", "make_tool"]
