"""The hub server: storage, access tokens, HTTP API, web pages and static export."""
