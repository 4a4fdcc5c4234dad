"""Client of a hub: read and publish packages, verify what was downloaded, install environments."""
