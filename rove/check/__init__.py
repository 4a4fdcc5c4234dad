"""What an environment package is written for, what it needs, and whether it runs here."""
