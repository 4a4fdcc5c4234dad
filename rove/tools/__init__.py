"""Functions as tools: schemas and checks of arguments."""
