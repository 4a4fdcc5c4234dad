"""Share environments as packages: `package` builds and checks them, `client` installs and publishes them, `server` hosts them.

Package code runs only when its author builds the package.
"""
