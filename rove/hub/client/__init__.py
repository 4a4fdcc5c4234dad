"""The user's side of a hub: asking one, deciding what is believed, and what is installed here."""
