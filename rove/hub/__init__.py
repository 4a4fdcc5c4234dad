"""Sharing environments as packages: what a package is, how one is built, kept and installed.

No code of a package runs here, except where its own author builds it.
"""
