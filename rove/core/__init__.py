"""Types that every other package uses: messages, requests, records, errors, configuration."""
