"""The hub server: storage, access tokens, HTTP API, web pages, static export and mirroring."""
