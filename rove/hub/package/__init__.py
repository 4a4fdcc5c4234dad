"""What an environment package is: names, limits, the manifest; archives that anybody may have made, read without running them;
signatures; and how a package is built.
"""
