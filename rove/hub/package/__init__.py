"""Environment packages: names, limits, manifest, signatures, building, and checking untrusted archives without running them."""
